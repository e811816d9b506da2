/* runtime.h: public interface of the runtime, which executes plans. Its
 * interface to the compiler is plan.h; this folder links neither Lua nor passes
 * nor code generators. */
#ifndef PLEAT_RUNTIME_H
#define PLEAT_RUNTIME_H

#include "device/gpu.h"
#include "device/host.h"
#include "train/train.h"

#endif
