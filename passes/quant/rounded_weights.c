/* rounded_weights.c: weights that are quantized once a step (fp8.c) are live
 * until its last micro-batch. If these bytes cost more than the time
 * (Graph.price), each reader quantizes the weight again:
 *
 *     pre:   %q = quantize %w %s              body:  %q = quantize %w %s
 *     body:  %v = dequantize %q %t      =>           %v = dequantize %q %t
 *
 * Their scales are kept. Weights that are sent to other ranks are not quantized
 * again. */
#include "quant.h"

static int is_rounded_once(const Node *n)
{
    return n->op == Oquantize && n->reg == REGpre;
}

static int64_t reads_in_body(const Graph *g, const Node *q)
{
    int64_t count = 0;

    for (size_t i = 0; i < vec_len(g->node); i++)
        for (int k = 0; k < g->node[i]->nin; k++)
            count += g->node[i]->reg == REGbody && g->node[i]->in[k] == q;
    return count;
}

/* Each order of a reader has a copy. */
int64_t rounded_bytes(const Graph *g, const Node *n)
{
    return is_rounded_once(n) ? reads_in_body(g, n) * local_bytes(g, n) : 0;
}

/* Added seconds of a micro-batch if each reader quantizes. */
static double secs_more(const Graph *g, const Node *q)
{
    double reads = (double)reads_in_body(g, q);
    double from = (double)local_bytes(g, q->in[0]);
    double to = (double)local_bytes(g, q), turns = (double)micro_turns(g);

    return (reads * (from + to) - (from + reads * to) / turns) /
           machine_of(g)->memory;
}

static void round_for(Graph *g, Node *q)
{
    for (size_t i = 0, n = vec_len(g->node); i < n; i++)
        for (int k = 0; k < g->node[i]->nin; k++) {
            Node *reader = g->node[i];
            if (reader->reg != REGbody || reader->in[k] != q)
                continue;
            reader->in[k] = g_placed(g_copyof(g, q, q->in), reader);
            reader->in[k]->again = reader->again;
        }
}

void round_again(Graph *g)
{
    double bytes = 0, secs = 0;

    for (size_t i = 0, n = vec_len(g->node); i < n; i++) {
        Node *q = g->node[i];
        if (!is_rounded_once(q))
            continue;
        double saved = (double)rounded_bytes(g, q), more = secs_more(g, q);
        if (more > 0 && more * bytes_a_second(g, q->scope->unit) >= saved)
            continue;
        round_for(g, q);
        bytes += saved;
        secs += more;
    }
    if (bytes == 0)
        return;
    why(g, NULL,
        "weights are rounded by each product that reads them, not once a step: "
        "%.4g GiB less, %.3g ms of a micro-batch more",
        bytes / (1 << 30), 1e3 * secs);
    g_sort(g);
    g_tidy(g);
    g_renumber(g);
}
