/* language_test: every function of the language called with what it does not
 * take: each argument missing, one too many, and each replaced by hostile
 * values. A call works, or ends in one message that begins with its place; no
 * signal, no abort, no hang. With PLEAT_ALL=1 models whose calls work are also
 * compiled. Each function is tried in a process of its own. The example that
 * `pleat help` has for each is right. */
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../frontend/frontend.h"

enum { MAXARG = 7, SECONDS = 120 };

/* What calls refer to. */
static const char around[] =
    "axes { batch=2, seq=4, hidden=8, vocab=16, expert=4, dim=6, nodes=2,"
    " key=4, aa=2, bb=4 }\n"
    "local x, ids = input('x', 'batch seq hidden'), input('tokens',"
    " 'batch seq')\n"
    "local w, W = param('w', 'hidden'), param('W', 'expert hidden dim')\n"
    "local s = state('s', 'expert')\n"
    "local p = softmax(dot(x, param('gate', 'hidden expert'), 'hidden'),"
    " 'expert')\n"
    "local g, e = topk(p, 2, 'expert')\n"
    "local c = lt(x, 0)\n"
    "local q = dot(x, param('wq', 'hidden dim'), 'hidden')\n"
    "local k = rename(q, {seq='key'})\n"
    "local sc = dot(q, k, 'dim')\n"
    "output('o', sum(x * w, 'hidden') + sum(sc, 'key') + sum(s, 'expert')\n"
    "  + sum(dot(x, W[e], 'hidden'), 'dim top'))\n";

/* A good call of each function; rows of takes.def without one are failures. */
/* clang-format off */
static const struct { const char *name, *arg[MAXARG]; } calls[] = {
    { "axes", { "{ cc=3 }" } },
    { "input", { "'y'", "'batch'", "'real'" } },
    { "param", { "'pp'", "'hidden'", "normal(0.1)" } },
    { "state", { "'ss'", "'hidden'", "1" } },
    { "update", { "s", "s * 2" } },
    { "loss", { "'l'", "mean(x, 'batch seq hidden')", "0.5", "sum(f32(ids), 'batch seq')" } },
    { "metric", { "'m'", "mean(x, 'batch seq hidden')" } },
    { "output", { "'oo'", "x" } },
    { "scope", { "'sc'", "2", "function(a) return a end", "x" } },
    { "module", { "'mlp'", "function(a) return a end", "x" } },
    { "again", { "'ag'", "function(a) return a * param('v', 'hidden') end", "x" } },
    { "option", { "'depth'", "24" } },
    { "keep", { "x" } }, { "recompute", { "x" } },
    { "hf", { "{ w={ 'a.b', 'hidden' } }" } },
    { "optimizer", { "'o'", "function(a, b) return a - b, {} end", "{ params='w', state={ m='fp32' }, others='sgd' }" } },
    { "train", { "{ steps=5, betas={ 0.9, 0.95 }, schedule='cosine' }" } },
    { "data", { "{ train='a', template=true }" } },
    { "fold", { "{ tp=1, zero=1 }" } },
    { "precision", { "{ policy='bf16' }" } },
    { "cluster", { "{ network=1e10 }" } },
    { "route", { "{ factor=1.5 }" } },
    { "normal", { "0.1" } }, { "uniform", { "0.1" } }, { "constant", { "1" } },
    { "f32", { "x" } }, { "bf16", { "x" } }, { "e4m3", { "x" } }, { "e5m2", { "x" } },
    { "e8m0", { "x" } }, { "amax", { "x", "'1x128'", "'hidden'", "'blocks'" } },
    { "quantize", { "x", "amax(x, 'row', 'hidden')", "'row'", "'hidden'", "''", "'e4m3'" } },
    { "dequantize", { "x", "amax(x, 'row', 'hidden')", "'row'", "'hidden'", "''" } },
    { "dropout", { "x", "0.1" } },
    { "exp", { "x" } }, { "lnot", { "c" } }, { "maximum", { "x", "2" } },
    { "mod", { "ids", "3" } }, { "pow", { "x", "2" } }, { "where", { "c", "x", "1" } },
    { "fma", { "x", "x", "1" } }, { "add", { "ids", "1" } },
    { "sum", { "x", "'hidden'" } }, { "mean", { "x", "'hidden'" } },
    { "max", { "x", "'hidden'" } }, { "min", { "x", "'hidden'" } },
    { "any", { "c", "'hidden'" } }, { "all", { "c", "'hidden'" } },
    { "dot", { "x", "w", "'hidden'" } }, { "topk", { "p", "2", "'expert'", "'tt'" } },
    { "argmax", { "p", "'expert'" } }, { "rename", { "x", "{ seq='key' }" } },
    { "split", { "x", "'hidden'", "'aa bb'" } }, { "merge", { "x", "'seq hidden'", "'sh'" } },
    { "slice", { "x", "'seq'", "1", "2" } }, { "concat", { "x", "x", "'seq'" } },
    { "shift", { "x", "'seq'", "1", "true" } }, { "cumsum", { "x", "'seq'" } },
    { "iota", { "'seq'" } }, { "one_hot", { "e", "'expert'" } }, { "index", { "ids", "'vocab'" } },
    { "gather", { "p", "e", "'expert'" } }, { "scatter_add", { "g", "e", "p", "'expert'" } },
    { "scatter_max", { "g", "e", "p", "'expert'" } }, { "has", { "x", "'hidden'" } },
    { "int", { "x" } }, { "floor", { "x" } }, { "xor", { "ids", "3" } },
    { "sort", { "x", "'seq'" } }, { "cummax", { "x", "'seq'" } },
    { "conv", { "x", "param('taps', 'hidden aa')", "'seq'", "'aa'" } },
    { "random", { "'normal'", "x" } },
    { "embed", { "ids", "param('emb', 'vocab hidden')" } }, { "size", { "x", "'hidden'" } },
    { "softmax", { "x", "'hidden'" } }, { "logsumexp", { "x", "'hidden'" } },
    { "rmsnorm", { "x", "w", "'hidden'", "1e-5" } }, { "layernorm", { "x", "'hidden'", "1e-5" } },
    { "swiglu", { "x", "x" } },
    { "rope", { "q", "'dim'", "'seq'", "1e4", "{ interleaved=true, yarn={ factor=4, original=16 } }" } },
    { "causal", { "sc", "'seq'", "'key'" } }, { "attention", { "sc", "k", "'key'" } },
    { "cross_entropy", { "x", "mod(ids, 8)", "'hidden'" } },
    { "lora", { "x", "W[e]", "'hidden'", "{ rank=2, alpha=4, dropout=0.1 }" } },
    { "softmax_topk", { "p", "2", "'expert'" } }, { "topk_softmax", { "p", "2", "'expert'" } },
    { "softmax_top1", { "p", "'expert'" } },
    { "sigmoid_topk", { "p", "2", "'expert'", "{ bias=s, groups='nodes', keep=1, best=2 }" } },
    { "expert_choice", { "x", "p", "2", "'expert'", "'batch seq'", "function(r) return r end" } },
    { "hash_index", { "ids", "'expert'" } }, { "balance_loss", { "p", "2", "'expert'", "'batch seq'" } },
    { "global_balance_loss", { "p", "2", "'expert'", "'batch seq'" } },
    { "z_loss", { "p", "'expert'", "'batch seq'" } },
    { "balance_bias", { "s", "e", "'expert'", "'batch seq top'", "1e-3" } },
    { "quantile_bias", { "s", "p", "2", "'expert'", "'seq'", "'batch'", "0.1" } },
    { "limit_groups", { "p", "'expert'", "'nodes'", "1", "2" } },
    { "pairs", { "{ a=1 }" } }, { "next", { "{ a=1 }", "'a'" } },
    { "string.format", { "'%s %d'", "x", "3" } }, { "tostring", { "x" } },
    { "math.random", { "1", "9" } }, { "setmetatable", { "{}", "{}" } },
    { "string.rep", { "'ab'", "3", "' '" } }, { "table.concat", { "{ 'a', 'b' }", "' '", "1", "2" } },
    { "table.unpack", { "{ 1, 2 }", "1", "2" } }, { "select", { "1", "2", "3" } },
    { "string.pack", { "'i4'", "3" } }, { "utf8.char", { "65" } }, { "rawset", { "{}", "1", "2" } },
    { "table.sort", { "{ 3, 1 }", "function(a, b) return a < b end" } },
    { "tonumber", { "'10'", "16" } }, { "error", { "'no'", "1" } }, { "require", { "'none'" } },
};
/* clang-format on */

static const char *const hostile[] = {
    "nil",
    "true",
    "0",
    "-1",
    "1.5",
    "0/0",
    "1/0",
    "-1/0",
    "2^63",
    "math.mininteger",
    "math.maxinteger",
    "1e300",
    "''",
    "' '",
    "'hidden'",
    "'batch seq'",
    "'nope'",
    "'a b c d e f g h i j'",
    "'a\\0b'",
    "'\\xff'",
    "'a.b'",
    "'x\\ny'",
    "'d.'",
    "'grad'",
    "'%p'",
    "('a'):rep(1000)",
    "{}",
    "{ 1 }",
    "{ a={} }",
    "{ [1]='a', b=2 }",
    "{ [x]=1 }",
    "{ [true]=1 }",
    "{ hidden='hidden' }",
    "{ seq='batch' }",
    "{ seq=5 }",
    "{ zz='seq' }",
    "{ ['a b']='seq' }",
    "{ ['a\\0b']=1 }",
    "{ seq=2^40 }",
    "{ w={ 'a', 'hidden hidden' } }",
    "{ w={ '{', '(hidden' } }",
    "{ config={ a={ b={ 0/0 } } } }",
    "{ betas={ 1, 2, 3 } }",
    "{ train={ { 0.5, 'a' }, { {} } } }",
    "{ yarn={ factor=0 } }",
    "{ yarn={} }",
    "{ bias=x }",
    "{ groups='expert', keep=9 }",
    "{ 'u', 1, kind='mtp' }",
    "{ 'u', 'v', kind='layer' }",
    "{ 'a\\0b', 1 }",
    "print",
    "error",
    "function() end",
    "function() return 1 end",
    "function(r) return sum(r, 'hidden') end",
    "x",
    "e",
    "W[e]",
    "c",
    "ids",
    "normal(1)",
    "'micro'",
    "'row'",
    "setmetatable({}, { __index=function(t, n) return t[n] end })",
    "setmetatable({}, { __tostring=function() error {} end })",
    "coroutine",
};
enum { NHOSTILE = sizeof hostile / sizeof *hostile };

typedef struct Count { /* shared with the child */
    int calls, refused;
    char call[300], wrong[400];
} Count;

static Count *count;
static jmp_buf back;
static const char *said;

static void hear(const char *message)
{
    said = message;
    longjmp(back, 1);
}

static void compile_too(Trace *t)
{
    CompileOptions co = { .source = t->source, .nsource = t->nsource };

    if (getenv("PLEAT_ALL"))
        compile(t->g, &T_host, &co);
}

/* One call, noted first, so that a process that dies names it. */
static void one(const char *call)
{
    Source s = { "model.lua",
                 strf(forever,
                      "%slocal r = %s\n"
                      "if getmetatable(r) == 'a tensor' then output('r', r) "
                      "end\n",
                      around, call) };

    count->calls++;
    snprintf(count->call, sizeof count->call, "%s", call);
    err_hook = hear;
    if (!setjmp(back)) {
        Trace t = trace_sources(&s, 1, opts_new(forever));
        compile_too(&t);
    } else {
        count->refused++;
        if (strncmp(said, "model.lua", 9) || !strstr(said, ": error: "))
            snprintf(count->wrong, sizeof count->wrong, "%s: %s", call, said);
    }
    err_hook = NULL;
}

/* The call of row i with n arguments, number `at` replaced. */
static const char *call_text(size_t i, int n, int at, const char *with)
{
    Text t = { .arena = forever };

    put(&t, "%s(", calls[i].name);
    for (int k = 0; k < n; k++)
        put(&t, "%s%s", k ? ", " : "", k == at ? with : calls[i].arg[k]);
    put(&t, ")");
    return t.s;
}

static void all_calls(size_t i)
{
    int n = 0;

    while (n < MAXARG && calls[i].arg[n])
        n++;
    for (int k = 0; k <= n; k++)
        one(call_text(i, k, -1, NULL));
    one(strf(forever, "%.*s, x)", (int)strlen(call_text(i, n, -1, NULL)) - 1,
             call_text(i, n, -1, NULL)));
    for (int k = 0; k < n; k++)
        for (int h = 0; h < NHOSTILE && !*count->wrong; h++)
            one(call_text(i, n, k, hostile[h]));
}

static int test(size_t i)
{
    int status;

    memset(count, 0, sizeof *count);
    fflush(stdout);
    pid_t pid = fork();
    if (!pid) {
        alarm(SECONDS);
        if (!freopen("/dev/null", "w", stderr))
            _exit(1);
        all_calls(i);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    if (status && !*count->wrong)
        snprintf(count->wrong, sizeof count->wrong, "%s: status %#x",
                 count->call, (unsigned)status);
    int bad = *count->wrong || count->refused < 2;
    printf("%sok - calls of %s: %d, %d refused %s\n", bad ? "not " : "",
           calls[i].name, count->calls, count->refused, count->wrong);
    return bad;
}

/* clang-format off */
static const char *const names[] = {
#define TAKES(name, items) #name,
#define FIELDS(name, items)
#include "../../frontend/lang/takes.def"
};
/* clang-format on */

enum { NNAME = sizeof names / sizeof *names };

/* Every row of takes.def has a good call above. */
static int all_named(void)
{
    int bad = 0;

    for (int i = 0; i < NNAME; i++) {
        int found = 0;
        for (size_t k = 0; k < sizeof calls / sizeof *calls; k++)
            found |= !strcmp(names[i], calls[k].name);
        if (!found)
            printf("# no call of %s\n", names[i]);
        bad |= !found;
    }
    printf("%sok - every function is called\n", bad ? "not " : "");
    return bad;
}

/* The last line of a function's help is an example that traces. */
static int example(const char *name)
{
    const char *entry = language_entry(forever, name), *line = entry;

    for (const char *s = entry; s && *s; s += strcspn(s, "\n") + 1)
        line = s;
    const char *local = line ? strstr(line, "local ") : NULL;
    const char *made = local ? local + strlen("local ") : "w";
    Source s = { "model.lua",
                 strf(forever,
                      "%s%sif getmetatable(%.*s) == 'a tensor' then "
                      "output('made', %.*s) end\n",
                      around, line ? line : "", (int)strcspn(made, " ,"), made,
                      (int)strcspn(made, " ,"), made) };
    int bad = !line || !strstr(line, name);
    said = "it is not in help";
    err_hook = hear;
    if (!bad && !setjmp(back))
        trace_sources(&s, 1, opts_new(forever));
    else
        bad = 1;
    err_hook = NULL;
    printf("%sok - language: example of %s%s%s\n", bad ? "not " : "", name,
           bad ? ": " : "", bad ? said : "");
    return bad;
}

static int examples(void)
{
    int bad = 0;

    for (int i = 0; i < NNAME; i++)
        if (!i || strcmp(names[i], names[i - 1]))
            bad += example(names[i]);
    for (Op op = 0; op < op_count; op++)
        if (optab[op].cls == EW && !optab[op].nattr && !op_is(op, OPhidden))
            bad += example(optab[op].name);
    return bad;
}

int main(int argc, char **argv)
{
    int bad = all_named() + examples();

    count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (argc < 2 || !strcmp(argv[1], calls[i].name))
            bad += test(i);
    return bad != 0;
}
