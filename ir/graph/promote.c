/* promote.c: the dtype of a node from its operands. Mixed reals become `real`,
 * the dtype that `precision` decides, so that an fp32 scale leaves activations
 * as they are; f32(x) is about that value only. A product has what is set, else
 * what its operands have. What is stored in a byte is fp32 to arithmetic. */
#include "graph.h"

static int isfloat(Dtype t)
{
    return dtypes[t].kind == 'f';
}

Dtype arithmetic_dtype(Dtype t)
{
    return is_narrow(t) ? Df32 : t;
}

Dtype promoted(Dtype a, Dtype b)
{
    if (a == b || b == Dnone)
        return a;
    if (a == Dnone)
        return b;
    if (isfloat(a) != isfloat(b))
        return isfloat(a) ? a : b;
    if (isfloat(a))
        return a == Df64 || b == Df64     ? Df64
               : a == Dreal || b == Dreal ? Dreal
               : a == Dbf16 || b == Dbf16 ? Dbf16
                                          : Df32;
    return a == Di64 || b == Di64 ? Di64 : Di32;
}

/* Ops that make sense on integers keep them; the others compute in f32. */
static int keeps_int(Op op)
{
    switch (op) {
    case Oadd:
    case Osub:
    case Omul:
    case Omod:
    case Ofloor_div:
    case Oxor:
    case Oneg:
    case Oabs:
    case Osign:
    case Omaximum:
    case Ominimum:
    case Owhere:
    case Obroadcast:
    case Ostop_gradient: return 1;
    default: return 0;
    }
}

static Dtype ew_dtype(const Node *n)
{
    Dtype t = Dnone;

    if (op_is(n->op, OPcmp))
        return Dbool;
    if (n->op == Ocast)
        return n->at.cast.to;
    for (int k = n->op == Owhere; k < n->nin; k++)
        t = promoted(t, n->in[k]->dt);
    if (n->op != Obroadcast && n->op != Ostop_gradient)
        t = arithmetic_dtype(t);
    if (isfloat(t) && (n->op == Omod || n->op == Ofloor_div || n->op == Oxor))
        err(n->loc, "%s: the operands must be integers, got %s",
            optab[n->op].name, dtypes[t].name);
    if (!isfloat(t) && !keeps_int(n->op))
        return Df32;
    return t == Dbool && n->op != Owhere && n->op != Obroadcast ? Di32 : t;
}

/* Bytes of two numbers are moved, nothing else; a cast is of the byte. */
static void check_packed(const Node *n)
{
    OpClass c = optab[n->op].cls;

    for (int k = 0; k < n->nin; k++)
        if (n->in[k]->dt == De2m1x2 && n->op != Ocast && n->op != Obroadcast &&
            (c == EW || c == RED || c == EIN || c == ROW))
            err(n->loc,
                "%s: the tensor has two numbers an element (e2m1x2); "
                "dequantize it first",
                optab[n->op].name);
}

Dtype infer_dtype(const Node *n)
{
    Dtype t;

    check_packed(n);
    switch (n->op) {
    case Oiota:
    case Otopk:
    case Oroute: return Di32;
    case Osum:
        t = n->in[0]->dt;
        return t == Dbool || t == Du8 ? Di32 : arithmetic_dtype(t);
    case Ocumsum: return arithmetic_dtype(n->in[0]->dt);
    case Omean:
        return isfloat(n->in[0]->dt) ? arithmetic_dtype(n->in[0]->dt) : Df32;
    case Odot:
    case Ogmm:
    case Ogmm_wgrad:
        return n->dt != Dnone
                   ? n->dt
                   : arithmetic_dtype(promoted(n->in[0]->dt, n->in[1]->dt));
    case Oscatter_add:
    case Oaccum: return n->dt != Dnone ? n->dt : arithmetic_dtype(n->in[0]->dt);
    case Oquantize: return n->at.quantize.to;
    case Oamax:
    case Ohadamard:
    case Odequantize: return n->in[n->nin - 1]->dt == Df64 ? Df64 : Df32;
    case Odropout:
    case Oresult: return n->in[0]->dt;
    case Osum_sq: return n->dt;
    case Oquantize_blocks:
    case Oattn:
    case Oattn_bwd: return Dnone;
    case Opart:
    case Ocall: return n->dt;
    default: break;
    }
    switch (optab[n->op].cls) {
    case SRC: return n->dt;
    case EW: return ew_dtype(n);
    case SINK: return Dnone;
    default: return n->nin ? n->in[0]->dt : n->dt;
    }
}
