/* rows.h: the functions that the table of instructions names. */
#ifndef PLEAT_EMU_ROWS_H
#define PLEAT_EMU_ROWS_H

#include "machine.h"

#define ROW(name, f, fields, flags, least, most, check) \
    void run_##f(SlotGroup *, const Insn *);
#include "rows.def"
#undef ROW

/* Null, or why an instruction is not possible or not known. */
const char *check_cvt(const Insn *i);
const char *check_mul(const Insn *i);
const char *check_f32(const Insn *i);
const char *check_access(const Insn *i);
const char *check_atom(const Insn *i);
const char *check_redux(const Insn *i);
const char *check_parity(const Insn *i);
const char *check_cp(const Insn *i);
const char *check_bulk(const Insn *i);
const char *check_tensor(const Insn *i);
const char *check_wgmma(const Insn *i);

#endif
