/* text.h: text forms of graphs, their parser and verifier */
#ifndef PLEAT_GRAPH_TEXT_H
#define PLEAT_GRAPH_TEXT_H

/* ---- columns.c: lines in columns ----------------------------------------- */

typedef struct ListingLine {
    const char *name, *what, *type, *shard, *loc; /* columns; null: empty */
    Region reg;
    const char *path; /* the scope, which may repeat */
    const char *note; /* not null: the line's only content */
} ListingLine;

/* Folding of repeated scopes: the line that represents a line (one of the
 * second repeat, or itself); the number of the line's repeat; the text of the
 * repeats, "layers.0 .. layers.31: x32", one pointer for all of their lines;
 * null: not repeated. */
typedef struct StandIn {
    size_t line, turn;
    const char *repeat;
} StandIn;
void stand_ins(Arena *a, const ListingLine *line, size_t n, StandIn *in);

/* Appends aligned lines; fold: prints repeated numbered scopes once. */
void put_lines(Text *out, const ListingLine *line, size_t n, const char *indent,
               const char *eq, int fold);

/* ---- print.c parse.c parsenode.c shardtext.c check.c dot.c --------------- */

/* print(parse(print(g))) gives the same bytes without PRINTfold. */
enum { PRINTloc = 1, PRINTfold = 2 }; /* places; repeated scopes once */
char *graph_print(Arena *a, const Graph *g, int flags);
/* Returns the lines of its nodes, in order. */
ListingLine *graph_lines(Arena *a, const Graph *g);
/* Appends the graph as cluster k of a Graphviz digraph, whose braces the caller
 * prints. fold: repeated scopes once. */
void graph_dot(Text *out, Graph *g, int k, int fold);
Graph *graph_parse(Arena *a, const char *text, size_t len, const char *name,
                   Opts *opts);
/* Parses the programs' graphs (vec) and the Lua sources (vec) as put_text(t,
 * "source", file, text) writes them. */
Graph **graphs_parse(Arena *a, const char *text, size_t len, const char *name,
                     Opts *opts, Source **sources);
void print_dims(Text *out, const Node *n); /* "[batch=2 seq=8]" */
int takes(Op op, int nin);                 /* may op have nin operands? */
/* Returns null, or the attribute that n lacks for infer. */
const char *attrs_wrong(Arena *a, const Node *n);
/* Defaults that the text omits: a name's scope, a node's row map. */
const char *text_scope(const char *name);
Node *text_map(const Node *n);
/* Returns "@ dp:batch tp:+"; null: n is whole, or types are not known yet. */
const char *shard_text(Arena *a, const Graph *g, const Node *n);
void put_atoms(Text *out, const Mesh *m, uint32_t set); /* "tp,dp" */
void lex_shards(Lex *lex, Graph *g, Node *n);           /* sets n->sh */
int64_t lex_atoms(Lex *lex, const Mesh *m);
Axis *lex_axis(const Lex *lex, const Graph *g, const char *name);

typedef struct GraphReader {
    Lex x;
    Graph *g;     /* the graph or body being read */
    Table *node;  /* name -> node of g */
    Table *body;  /* name -> graph */
    Table *usual; /* undeclared axis -> default size */
    Table *axis;  /* name -> axis, of all graphs of the text */
    Region reg;
    int call; /* 1 + index of the call of the current "F0:" section */
} GraphReader;

void parse_nodes(GraphReader *reader); /* reads a line: a node or a section */
Axis *parse_axis(GraphReader *reader);
int parse_type(GraphReader *reader, Dtype *dt, Dim *dim,
               int *nd); /* returns 0 if there is no type */
const Loc *parse_places(GraphReader *reader);
/* Returns the index of the graph's call named by the n bytes at s; -1: none. */
int parse_call(const GraphReader *reader, const char *s, size_t n);

void check_graph(
    const Graph *g); /* checks the level's rules; die() if broken */
char *graph_wrong(Arena *a, const Graph *g); /* null, or the broken rule */

#endif
