/* wire.c: rows of experts that their products read as numbers of 8 bits, where
 * precision.wire says so: all gradients of weights read them rounded too, so
 * they may be rounded where their tokens lie, and the numbers and what 1 stands
 * for in each block are sent:
 *
 *     %b = dispatch %x %m1    =>   %s = pow2_scale (amax %x)
 *     %c = split %b                %q = quantize %x %s
 *     %r = dispatch %c %m2         %p = dispatch (split (dispatch %q %m1)) %m2
 *     %v = .. of %r rounded        %t = dispatch (split (dispatch 1/%s ..)) %m2
 *                                  %v = cast (dequantize %p %t)
 *
 * A block is of one row, so rounding and moving commute, to the bit. Rows of
 * nobody are 0 both ways. Sums that come back stay in the dtype of activations.
 * Rows that stay on a rank are rounded there, once for all their readers. */
#include "../../ir/settings/keys.h"
#include "quant.h"

enum { LONGEST = 16 }; /* nodes of a way: three exchanges have eight */

struct Wire {
    Graph *g;
    Table *uses; /* a node -> how many read it */
};

/* Nodes between rows and what is sent, from the last to the first. */
typedef struct RowsWay {
    const Node *node[LONGEST];
    int n, sent; /* sent: at the exchange, in nodes of the way; -1: none */
    Node *source;
} RowsWay;

static int carries_rows(const Node *x)
{
    return x->op == Odispatch || x->op == Osplit ||
           (x->op == Obroadcast && x->nin == 1);
}

/* The way ends at its first dispatch. */
static RowsWay way_of_rows(Node *rows)
{
    RowsWay way = { .sent = -1, .source = rows };
    int n = 0;

    for (Node *x = rows; carries_rows(x) && n < LONGEST; x = x->in[0]) {
        way.node[n++] = x;
        if (x->op != Odispatch)
            continue;
        if (x->in[1]->at.route.blocks.n)
            way.sent = n - 1;
        way.n = n;
        way.source = x->in[0];
    }
    return way;
}

Wire *wire_new(Graph *g)
{
    Wire *wire = alloc(g->arena, sizeof *wire);

    wire->g = g;
    wire->uses = use_table(g);
    return wire;
}

/* Seconds of a micro-batch on a rank that one transfer takes, of elements of so
 * many bytes, by way of the map of a dispatch that sends. */
static double sending(const Graph *g, const Node *dispatch, double wide,
                      double bytes)
{
    const struct route_attrs *t = &dispatch->in[1]->at.route;
    const MachineSpeeds *speeds = machine_of(g);
    double all = (double)t->axis->n, share = t->direct > 0 ? t->direct : 1;
    double here = (double)mesh_extent(g->mesh, t->axis->atoms & near_atoms(g));
    double rows = (all - 1) * (double)t->capacity * share;

    return transfer_secs(speeds, all, here, rows * wide * bytes, 1) +
           speeds->hop;
}

/* Seconds that all exchanges on the way take less of numbers and scales of
 * `block` numbers, two transfers in place of one. */
static double gain_of(const Graph *g, const RowsWay *way, double wide,
                      double block)
{
    double gain = 0, bytes = dtypes[way->source->dt].bytes;

    for (int i = 0; i < way->n; i++)
        if (way->node[i]->op == Odispatch &&
            way->node[i]->in[1]->at.route.blocks.n)
            gain += sending(g, way->node[i], wide, bytes) -
                    sending(g, way->node[i], wide, dtypes[De4m3].bytes) -
                    sending(g, way->node[i], ceil(wide / block),
                            dtypes[Df32].bytes);
    return gain;
}

static int read_once(const Wire *wire, const RowsWay *way)
{
    for (int i = 1; i < way->n; i++)
        if ((uintptr_t)table_get(wire->uses, KEYP(way->node[i])) != 1)
            return 0;
    return 1;
}

Node *wire_source(const Wire *wire, Node *rows, const Axis *cut, int64_t block)
{
    const Graph *g = wire->g;
    RowsWay way = way_of_rows(rows);
    enum rows_on_wire wish = opts_rows_on_wire(g->opts);
    double wide = (double)rows->dim[dim_of(rows, cut)].n;

    if (way.sent < 0)
        return rows;
    double gain = gain_of(g, &way, wide, (double)block),
           bytes = dtypes[rows->dt].bytes;
    double share = (1 + 4 * ceil(wide / (double)block) / wide) / bytes;
    const char *stays =
        wish == WIREnone                ? "precision.wire=none"
        : wish == WIREarrived           ? "precision.wire=arrived"
        : fmod(wide, 16) != 0           ? "they are no whole pieces of 16 bytes"
        : !read_once(wire, &way)        ? "others read them on their way"
        : wish == WIREpays && gain <= 0 ? "it would take longer"
                                        : NULL;
    if (stays)
        why(g, rows, "rows are sent in %s: %s (%.3g of the bytes, %+.1f us)",
            dtypes[rows->dt].name, stays, share, -gain * 1e6);
    else
        why(g, rows,
            "rows are sent in e4m3, 1x%lld: %.3g of the bytes; %+.1f us a "
            "micro-batch",
            (long long)block, share, -gain * 1e6);
    return stays ? rows : way.source;
}

/* What `like` makes of its operand, made of v. */
static Node *moved_by(Graph *g, const Node *like, Node *v)
{
    Node *in[2] = { v, like->nin > 1 ? like->in[1] : NULL };
    Node *n = g_placed(g_node(g, like->op, like->loc, like->nin, in), like);

    n->again = like->again;
    if (like->op == Osplit)
        n->at.split = like->at.split;
    if (like->op != Obroadcast)
        return infer(g, n);
    n->nd = v->nd;
    memcpy(n->dim, v->dim, sizeof n->dim);
    for (int d = 0; d < like->nd; d++)
        if (dim_of(like->in[0], like->dim[d].a) < 0)
            n->dim[n->nd++] = like->dim[d];
    return infer(g, n);
}

Node *wire_moved(const Wire *wire, Node *rows, Node *v)
{
    RowsWay way = way_of_rows(rows);

    for (int i = way.n; i-- > 0;)
        v = moved_by(wire->g, way.node[i], v);
    return v;
}
