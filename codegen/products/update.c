/* update.c: text of the optimizer update in a wgrad kernel, from the nodes of
 * the group; update.cuh precedes it:
 *
 *     struct Update { float *q0; uint16_t *q1; float x0; };
 *     FN void advance(Update &u, int64_t by) { u.q0 += by; u.q1 += by; }
 *     FN void fetch_half(const Update &u, int at, const uint8_t *slot,
 *                        int half)
 *     {
 *         fetch_kept(slot + 0, half, u.q0 + at);
 *         ...
 *     }
 *     FN void update_piece(const float (&g)[PIECE], const Update &u,
 *                          const int (&at)[HALVES], const uint8_t *slot,
 *                          uint32_t (&pair)[PIECE / 2])
 *     {
 *         float v1[8]; load_kept<float>(v1, slot + 0);
 *         float v2[8]; LANES(8) v2[l] = v1[l] * (float)0x1.cp-1;
 *         ...
 *         store_kept(u.q0, at, v2);
 *         give_pairs(pair, v3);            the value that is quantized
 *     }
 *     FN uint8_t *numbers_of(const Update &u) { return (uint8_t *)u.q2; }
 *     FN float *scales_of(const Update &u) { return u.q3; }
 *
 * Expressions equal those of loop kernels, so values are bitwise equal. */
#include "products.h"

enum { PIECE = 8, THREADS = 128 };

typedef struct UpdatePrinter {
    Group *group;
    Arena *arena;
    /* vec: tensors read or written elementwise; numbers and scales of the
     * quantized value */
    Node **kept;
    Node **read;        /* vec: those of `kept` that are read */
    Node **number;      /* vec: scalars */
    Node **done;        /* vec: values that have an array */
    Node *rounded;      /* quantize_blocks of the update; null: none */
    const Node *scales; /* its scales in `kept` */
    Text load, body, store, numbers;
    int64_t bytes; /* bytes of a slot */
} UpdatePrinter;

static int index_or_add(Node ***v, Arena *a, Node *n)
{
    size_t i = 0;

    while (i < vec_len(*v) && (*v)[i] != n)
        i++;
    if (i == vec_len(*v))
        vec_push(a, *v, n);
    return (int)i;
}

static int contains(Node *const *v, const Node *n)
{
    for (size_t i = 0; i < vec_len(v); i++)
        if (v[i] == n)
            return 1;
    return 0;
}

static const char *array_name(UpdatePrinter *printer, Node *n)
{
    return strf(printer->arena, "v%d",
                index_or_add(&printer->done, printer->arena, n));
}

/* ---- values -------------------------------------------------------------- */

static void put_kept(UpdatePrinter *printer, Node *n)
{
    int at = index_or_add(&printer->kept, printer->arena, n);
    const DtypeInfo *dt = &dtypes[n->dt];

    vec_push(printer->arena, printer->read, n);
    put(&printer->load, "    fetch_kept(slot + %ld, half, u.q%d + at);\n",
        printer->bytes, at);
    put(&printer->body, "    %s %s[%d]; load_kept<%s>(%s, slot + %ld);\n",
        dt->compute, array_name(printer, n), PIECE, dt->store,
        array_name(printer, n), printer->bytes);
    printer->bytes += THREADS * PIECE * dt->bytes;
}

static const char *lane_value(UpdatePrinter *printer, Node *n);

/* Operand k of n, converted to n's type. The integer of a join_bf16 stays an
 * integer. */
static const char *lane_operand(UpdatePrinter *printer, const Node *n, int k)
{
    const Node *in = n->in[k];

    if (n->op == Ojoin_bf16 && in->op == Ocast && in->in[0]->dt == Di16)
        return lane_value(printer, in->in[0]);
    const char *x = lane_value(printer, n->in[k]);
    Dtype to = compute_type(n->dt);

    return compute_type(n->in[k]->dt) == to
               ? x
               : strf(printer->arena, "(%s)%s", dtypes[to].compute, x);
}

/* The quotients of all lanes by one call. */
static void put_quotients(UpdatePrinter *printer, Node *n)
{
    const char *a = lane_operand(printer, n, 0),
               *b = lane_operand(printer, n, 1);

    put(&printer->body, "    %s\n",
        text_quotients(printer->arena, array_name(printer, n), PIECE, a, b));
}

static const char *lane_expression(UpdatePrinter *printer, const Node *n)
{
    const char *arg[SCALARIN];
    Text x = { .arena = printer->arena };

    if (n->op == Ocast && n->dt == Di16 && n->in[0]->op == Oremainder_bf16)
        n = n->in[0]; /* an integer */
    for (int k = 0; k < n->nin; k++)
        arg[k] = lane_operand(printer, n, k);
    put_scalar(&x, optab[n->op].expr,
               &(ScalarNames){ .operand = arg, .dt = Df32 });
    return x.s;
}

/* x rounded to the type of n. */
static const char *rounded_text(const UpdatePrinter *printer, const Node *n,
                                const char *x)
{
    Text t = { .arena = printer->arena };

    if (!*dtypes[n->dt].round)
        return x;
    put_scalar(&t, scalar_of(dtypes[n->dt].round),
               &(ScalarNames){ .operand = &x, .dt = Df32 });
    return t.s;
}

static void put_value(UpdatePrinter *printer, Node *n, const char *made)
{
    const char *x = rounded_text(printer, n, made);

    put(&printer->body, "    %s %s[%d]; LANES(%d) %s[l] = %s;\n",
        dtypes[n->dt].compute, array_name(printer, n), PIECE, PIECE,
        array_name(printer, n), x);
}

/* C text of n's value at lane l. */
static const char *lane_value(UpdatePrinter *printer, Node *n)
{
    int gradient = n == printer->group->node[1];

    if (gradient && n->dt == Df32)
        return "g[l]";
    if (n->op == Oconst)
        return strf(printer->arena, "(%s)%a", dtypes[n->dt].compute,
                    n->at.constant.value);
    if (n->nd == 0)
        return strf(printer->arena, "u.x%d",
                    index_or_add(&printer->number, printer->arena, n));
    if (!contains(printer->done, n) && is_lasting(n))
        put_kept(printer, n);
    else if (!contains(printer->done, n) && n->op == Odiv && n->dt == Df32)
        put_quotients(printer, n);
    else if (!contains(printer->done, n))
        put_value(printer, n, gradient ? "g[l]" : lane_expression(printer, n));
    return strf(printer->arena, "%s[l]", array_name(printer, n));
}

/* Pointer to a result of the quantization. */
static void put_part(UpdatePrinter *printer, const Node *w)
{
    int at = index_or_add(&printer->kept, printer->arena, storage(w->in[0]));
    int scaling = w->in[1]->at.part.index != 0;

    printer->rounded = w->in[1]->in[0];
    if (scaling)
        printer->scales = printer->kept[at];
    put(&printer->numbers,
        scaling ? "FN float *scales_of(const Update &u) { return u.q%d; }\n"
                : "FN uint8_t *numbers_of(const Update &u) { return (uint8_t "
                  "*)u.q%d; "
                  "}\n",
        at);
}

static void put_write(UpdatePrinter *printer, const Node *w)
{
    Node *n = w->in[1];

    if (n->op == Opart) {
        put_part(printer, w);
        return;
    }
    lane_value(printer, n);
    put(&printer->store, "    store_kept(u.q%d, at, %s);\n",
        index_or_add(&printer->kept, printer->arena, storage(w->in[0])),
        array_name(printer, n));
}

/* ---- the update's text --------------------------------------------------- */

/* struct Update, its kernel parameters, each with a comma, and its
 * initializers. */
static void put_struct(UpdatePrinter *printer, Text *out)
{
    Text param = { .arena = printer->arena }, all = param;

    put(out, "struct Update { ");
    for (size_t i = 0; i < vec_len(printer->kept); i++) {
        const char *type = dtypes[printer->kept[i]->dt].store;
        put(out, "%s *q%zu; ", type, i);
        put(&param, "%s *q%zu, ", type, i);
        put(&all, "%sq%zu", i ? ", " : "", i);
    }
    for (size_t i = 0; i < vec_len(printer->number); i++) {
        put(out, "float x%zu; ", i);
        put(&param, "const float *x%zu, ", i);
        put(&all, ", *x%zu", i);
    }
    put(out, "};\nFN void advance(Update &u, int64_t by) {");
    for (size_t i = 0; i < vec_len(printer->kept); i++)
        if (printer->kept[i] != printer->scales)
            put(out, " u.q%zu += by;", i);
    put(out, " }\n#define UPDATED_TENSORS %s\n#define UPDATED_VALUES %s\n",
        param.s, all.s);
}

/* Stores the value to be quantized as pairs; the product's kernel quantizes
 * it. */
static void put_pairs(UpdatePrinter *printer)
{
    if (!printer->rounded)
        return;
    lane_value(printer, printer->rounded->in[0]);
    put(&printer->store, "    give_pairs(pair, %s);\n",
        array_name(printer, printer->rounded->in[0]));
}

static const char *text_of(const Text *t)
{
    return t->s ? t->s : "";
}

ProductUpdate *update_text(Group *group, Arena *a, int ahead)
{
    UpdatePrinter printer = { .group = group, .arena = a };
    ProductUpdate *update = alloc(a, sizeof *update);
    Text out = { .arena = a };

    printer.load = printer.body = printer.store = printer.numbers = out;
    for (int i = 0; i < group->n; i++)
        if (group->node[i]->op == Owrite)
            put_write(&printer, group->node[i]);
    put_pairs(&printer);
    update->ahead = ahead;
    update->bytes = printer.bytes;
    put(&out,
        "#define UPDATE 1\n#define AHEAD %d\n#define KEPT %ld\n"
        "#define ROUNDS %d\n",
        ahead, printer.bytes, printer.rounded != NULL);
    if (printer.rounded)
        putn(&out, scale_cuh, strlen(scale_cuh));
    putn(&out, update_cuh, strlen(update_cuh));
    put_struct(&printer, &out);
    put(&out,
        "FN void fetch_half(const Update &u, int at, const uint8_t *slot,\n"
        "                   int half)\n{\n%s}\n"
        "FN void update_piece(const float (&g)[PIECE], const Update &u,\n"
        "                     const int (&at)[HALVES],\n"
        "                     const uint8_t *slot, uint32_t (&pair)[PIECE / "
        "2])\n"
        "{\n%s%s}\n%s",
        text_of(&printer.load), text_of(&printer.body), text_of(&printer.store),
        text_of(&printer.numbers));
    update->text = out.s;
    update->kept = printer.kept;
    update->read = printer.read;
    update->number = printer.number;
    return update;
}
