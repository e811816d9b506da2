/* passtool: run passes on a graph in text form and print it.
 *
 *     passtool pass[,pass...] file.ir
 *
 * Lines of the file from `# >>>` on are the expectation and are not read. A
 * line `# set key=value` gives an option. `-` as the pass list only parses and
 * prints. After `fuse` or `sched` as the last pass the kernels are printed,
 * after `emit` the plan, made for the null device, so without kernel text,
 * after `gen` the kernels' texts for target=, `gen:attn` those of that family.
 * Of a pipeline each stage's graph is printed, and the first one's kernels. */
#include <stdlib.h>
#include <string.h>

#include "unit/optimizers.h"

extern const char attn_gpu_pre[], attn_warp_pre[], attn_wgmma_pre[],
    grouped_cuh[], gmm_cuh[], scale_cuh[], update_cuh[], hopper_cuh[],
    capacity_cuh[], cumsum_cuh[], dispatch_cuh[], fake_quantize_cuh[],
    route_cuh[], scatter_cuh[], sort_cuh[], topk_cuh[];

static char *read_file(const char *name, size_t *len)
{
    char *s = file_read(forever, name, len);

    if (!s)
        err(NULL, "cannot read %s", name);
    return s;
}

static void set_options(Opts *o, const char *text)
{
    for (const char *s = text; (s = strstr(s, "# set "));) {
        s += 6;
        size_t k = strcspn(s, "="), n = strcspn(s + k + 1, "\n");
        opts_set(o, internn(s, k), internn(s + k + 1, n), NULL);
    }
}

static const char *kernels(Graph *g, const Target *T, const char *stage)
{
    Group **k = run_fuse(g, T, forever);

    if (!strcmp(stage, "sched")) {
        pass_sched(g);
        k = groups_of(g, forever);
    }
    return groups_print(forever, k, 0);
}

/* Text with `part` once replaced. */
static const char *replaced(const char *text, const char *part, const char *by)
{
    const char *at = strstr(text, part);

    return at ? strf(forever, "%.*s%s%s", (int)(at - text), text, by,
                     at + strlen(part))
              : text;
}

/* Without what is its hash, and what stands in files of codegen/. */
static const char *own_text(const Group *k)
{
    const struct {
        const char *text, *by;
    } shared[] = {
        { k->instr.kernel, "k" },
        { attn_gpu_pre, "/* attn_gpu.pre */\n" },
        { attn_warp_pre, "/* attn_warp.pre */\n" },
        { attn_wgmma_pre, "/* attn_wgmma.pre */\n" },
        { hopper_cuh, "/* hopper.cuh */\n" },
        { grouped_cuh, "/* grouped.cuh */\n" },
        { gmm_cuh, "/* gmm.cuh */\n" },
        { scale_cuh, "/* scale.cuh */\n" },
        { update_cuh, "/* update.cuh */\n" },
        { capacity_cuh, "/* capacity.cuh */\n" },
        { cumsum_cuh, "/* cumsum.cuh */\n" },
        { dispatch_cuh, "/* dispatch.cuh */\n" },
        { fake_quantize_cuh, "/* fake_quantize.cuh */\n" },
        { route_cuh, "/* route.cuh */\n" },
        { scatter_cuh, "/* scatter.cuh */\n" },
        { sort_cuh, "/* sort.cuh */\n" },
        { topk_cuh, "/* topk.cuh */\n" },
    };
    const char *s = k->text;

    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        s = replaced(s, replaced(shared[i].text, "@(", "k("), shared[i].by);
    return s;
}

/* The texts of its kernels, those of one family if `stage` names it. */
static const char *texts(Graph *g, const Target *T, const char *stage)
{
    const char *family = strchr(stage, ':');
    Group **k = run_fuse(g, T, forever), **one = NULL;
    Text t = { .arena = forever };

    vec_push(forever, one, NULL);
    for (size_t i = 0; i < vec_len(k); i++) {
        if (family && strcmp(families[k[i]->fam], family + 1))
            continue;
        T->lower(g, k[i], forever);
        one[0] = k[i];
        if (k[i]->text)
            put(&t, "%s%s", groups_print(forever, one, 0), own_text(k[i]));
    }
    return t.s ? t.s : "";
}

/* The kernels of a program, numbered on from `first`; the number after them. */
static size_t emit_kernels(Emit *e, Graph *g, const Target *T, size_t first)
{
    run_fuse(g, T, forever);
    pass_sched(g);
    Group **k = groups_of(g, forever);

    for (size_t i = 0; i < vec_len(k); i++) {
        T->lower(g, k[i], forever);
        if (k[i]->instr.kind == Ikernel) /* not the hash of its text */
            k[i]->instr.kernel =
                strf(forever, "%s.%zu", families[k[i]->fam], first + i);
    }
    emit_program(e, place_program(g, k));
    return first + vec_len(k);
}

/* The program that fills parameters, after those of the passes for it. */
static Graph *initial(Graph *g, const Target *T, const char *passes)
{
    Graph *h = initial_graph(g);
    char *list = strf(forever, "%s", passes), *p;

    while ((p = strsep(&list, ",")))
        for (const PassInfo *row = passtab; row->run; row++)
            if (!strcmp(row->name, p) && row->programs >> PGinit & 1)
                run_pass(h, T, p);
    return h;
}

/* Every plan has that program too. */
static const char *plan(Graph *g, const char *passes)
{
    const Target *T = target_named("null");
    Emit *e = emit_new(forever, g, T);
    size_t len, n = emit_kernels(e, g, T, 0);

    emit_kernels(e, initial(g, T, passes), T, n);
    return plan_print(forever, emit_finish(e, &(CompileOptions){ 0 }), &len);
}

int main(int argc, char **argv)
{
    size_t len;

    if (argc != 3) {
        fprintf(stderr, "usage: passtool pass[,pass...]|- file.ir\n");
        return 2;
    }
    char *text = read_file(argv[2], &len), *end = strstr(text, "# >>>");
    Opts *o = opts_new(forever);
    set_options(o, text);
    if (end)
        len = (size_t)(end - text);
    Graph *g = graph_parse(forever, text, len, argv[2], o);
    if (!g->nrole)
        g->stages = stages_cut(g);
    const char *target = opts_str(o, "target");
    const Target *T = target_named(target ? target : "host");
    char *list = strf(forever, "%s", argv[1]), *p;
    const char *out = NULL;
    if (strstr(list, "step"))
        optimizers_add(g);
    while ((p = strsep(&list, ",")))
        if (!strcmp(p, "fuse") || !strcmp(p, "sched"))
            out = kernels(g, T, p);
        else if (!strncmp(p, "gen", 3) && strchr(":", p[3]))
            out = texts(g, T, p);
        else if (!strcmp(p, "emit"))
            out = plan(g, argv[1]);
        else if (!strcmp(p, "offload"))
            kernels(g, T, "sched"), run_pass(g, T, p);
        else if (strcmp(p, "-"))
            run_pass(g, T, p);
    if (out)
        fputs(out, stdout);
    for (const Graph *h = g; h && !out; h = h->next)
        fputs(graph_print(forever, h, 0), stdout);
    return 0;
}
