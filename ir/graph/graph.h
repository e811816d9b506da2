/* graph.h: ops, nodes, sharding types, targets: programs before plans */
#ifndef PLEAT_GRAPH_H
#define PLEAT_GRAPH_H

#include "../plan/plan.h"

#include "../verify/live.h"

#include "op.h"

#include "node.h"

#include "rank.h"

#include "shard.h"

#include "query.h"

#include "text.h"

#include "target.h"

#endif
