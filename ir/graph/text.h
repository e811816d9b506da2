/* text.h: text forms of graphs, their parser and verifier */
#ifndef PLEAT_GRAPH_TEXT_H
#define PLEAT_GRAPH_TEXT_H

/* ---- columns.c: lines in columns ----------------------------------------- */

typedef struct ListingLine {
    const char *name, *what, *type, *shard, *loc; /* columns; null: empty */
    Region reg;
    const char *path; /* the scope, which may repeat */
    const char *note; /* not null: this line says only that */
} ListingLine;

/* Where repeated scopes stand there once: the line that stands for a line, one
 * of the second repeat or itself; in which of the repeats the line is; which
 * repeats, "layers.0 .. layers.31: x32", one pointer for all of their lines;
 * null: it does not repeat. */
typedef struct StandIn {
    size_t line, turn;
    const char *repeat;
} StandIn;
void stand_ins(Arena *a, const ListingLine *line, size_t n, StandIn *in);

/* With `fold` scopes that repeat with a number stand there once. */
void put_lines(Text *out, const ListingLine *line, size_t n, const char *indent,
               const char *eq, int fold);

/* ---- print.c parse.c parsenode.c shardtext.c check.c dot.c --------------- */

/* parse(print(g)) prints the same bytes. Flags: with places, all repeats. */
enum { PRINTloc = 1, PRINTfold = 2 }; /* fold: repeated scopes once, to read */
char *graph_print(Arena *a, const Graph *g, int flags);
/* The lines of its nodes, in order. */
ListingLine *graph_lines(Arena *a, const Graph *g);
/* The graph as the k-th cluster of a Graphviz digraph, whose braces are the
 * caller's. fold: repeated scopes once. */
void graph_dot(Text *out, Graph *g, int k, int fold);
Graph *graph_parse(Arena *a, const char *text, size_t len, const char *name,
                   Opts *opts);
/* A stage of a whole compile: the programs' graphs (vec), then the Lua sources
 * as put_text(t, "source", file, text) writes them (vec). */
Graph **graphs_parse(Arena *a, const char *text, size_t len, const char *name,
                     Opts *opts, Source **sources);
void print_dims(Text *out, const Node *n); /* "[batch=2 seq=8]" */
int takes(Op op, int nin);                 /* may op have that many operands? */
/* Null, or what n lacks before infer may look at it. */
const char *attrs_wrong(Arena *a, const Node *n);
/* What the text leaves out when it is so: a name's scope, a node's row map. */
const char *text_scope(const char *name);
Node *text_map(const Node *n);
/* "@ dp:batch tp:+"; null: n is whole, or types are not known yet. */
const char *shard_text(Arena *a, const Graph *g, const Node *n);
void put_atoms(Text *out, const Mesh *m, uint32_t set); /* "tp,dp" */
void lex_shards(Lex *lex, Graph *g, Node *n);           /* into n->sh */
int64_t lex_atoms(Lex *lex, const Mesh *m);
Axis *lex_axis(const Lex *lex, const Graph *g, const char *name);

typedef struct GraphReader {
    Lex x;
    Graph *g;     /* being filled: the graph, or a body */
    Table *node;  /* name -> node of g */
    Table *body;  /* name -> graph */
    Table *usual; /* undeclared axis -> size where none stands */
    Table *axis;  /* name -> axis, of all graphs of the text */
    Region reg;
    int call; /* 1 + index: of what stands below "F0:" */
} GraphReader;

void parse_nodes(
    GraphReader *reader); /* a line: a node, or where nodes belong */
Axis *parse_axis(GraphReader *reader);
int parse_type(GraphReader *reader, Dtype *dt, Dim *dim,
               int *nd); /* 0: none there */
const Loc *parse_places(GraphReader *reader);
/* Index of the graph's call that the n bytes at s name; -1: none. */
int parse_call(const GraphReader *reader, const char *s, size_t n);

void check_graph(const Graph *g); /* the level's own rules; die() when broken */
char *graph_wrong(Arena *a, const Graph *g); /* null, or which is broken */

#endif
