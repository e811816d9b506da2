/* tensor.c: maps of tensors and the boxes that bulk copies move. A map's 128
 * bytes are ours; it is made in shared memory, published to global memory, and
 * read by copies behind an acquire of their block. */
#include "rows.h"

#include <stdlib.h>
#include <string.h>

enum { MAPBYTES = 128, MAXRANK = 5 };

typedef struct Map {
    uint64_t base, stride[4]; /* bytes */
    uint32_t dim[MAXRANK];
    uint16_t box[MAXRANK];
    uint8_t step[MAXRANK], rank, type, swizzle, interleave, fill;
} Map;
_Static_assert(sizeof(Map) <= MAPBYTES, "a map has 128 bytes");

/* By the number of the type: bytes of an element. */
static const int element[] = { 1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4 };
enum { NELEMENT = sizeof element / sizeof *element, TYPEF32 = 7 };

/* ---- making and publishing ----------------------------------------------- */

typedef struct Published {
    const uint8_t *at;
    const StepValues *by; /* who has acquired it since; null: no one */
    Place block;
} Published;

static Published *published;
static int npublished, cap;

void maps_start(void)
{
    npublished = 0;
}

static Published *published_at(const uint8_t *p)
{
    for (int i = npublished; i-- > 0;)
        if (published[i].at == p)
            return &published[i];
    return NULL;
}

static void set_axis(Map *m, int how, uint64_t axis, uint64_t v)
{
    if (axis >= (how == Hstride ? 4 : MAXRANK))
        fail(EILLEGALINSTRUCTION, "axis %llu", (unsigned long long)axis);
    switch (how) {
    case Hbox: m->box[axis] = (uint16_t)v; break;
    case Hdims: m->dim[axis] = (uint32_t)v; break;
    case Helement: m->step[axis] = (uint8_t)v; break;
    default: m->stride[axis] = v;
    }
}

void run_map_replace(SlotGroup *f, const Insn *i)
{
    uint8_t *p = address(f, i, &i->o[0], i->space[0], MAPBYTES);
    int per_axis = i->how == Hbox || i->how == Hdims || i->how == Hstride ||
                   i->how == Helement;
    uint64_t v = get_value(f, &i->o[i->n - 1]);
    Map m;

    if (i->n != 2 + per_axis)
        fail(EILLEGALINSTRUCTION, "another number of operands");
    memcpy(&m, p, sizeof m);
    switch (i->how) {
    case Haddress: m.base = v; break;
    case Hrank: m.rank = (uint8_t)(v + 1); break;
    case Helemtype: m.type = (uint8_t)v; break;
    case Hswizzle: m.swizzle = (uint8_t)v; break;
    case Hinterleave: m.interleave = (uint8_t)v; break;
    case Hfill: m.fill = (uint8_t)v; break;
    default: set_axis(&m, i->how, get_value(f, &i->o[1]), v);
    }
    memcpy(p, &m, sizeof m);
}

static void publish_all(Warp *w, unsigned mask, const Insn *i)
{
    const Thread *t = &w->thread[__builtin_ctz(mask)];
    uint8_t *to = (uint8_t *)(uintptr_t)t->value[0];

    (void)i;
    memcpy(to, (const void *)(uintptr_t)t->value[1], MAPBYTES);
    Published *p = published_at(to);
    if (!p) {
        if (npublished == cap) {
            cap = cap ? cap * 2 : 64;
            published = realloc(published, (size_t)cap * sizeof *published);
        }
        p = &published[npublished++];
    }
    *p = (Published){ .at = to };
}

/* [global], [shared], 128; a warp together. */
void run_map_publish(SlotGroup *f, const Insn *i)
{
    Thread *t = f->t;

    if (i->nspace != 2 || i->space[0] != Sglobal || i->space[1] != Sshared ||
        get_value(f, &i->o[2]) != MAPBYTES)
        fail(EILLEGALINSTRUCTION, "from shared to global memory, 128 bytes");
    uint64_t to =
        (uint64_t)(uintptr_t)address(f, i, &i->o[0], Sglobal, MAPBYTES);
    uint64_t from =
        (uint64_t)(uintptr_t)address(f, i, &i->o[1], Sshared, MAPBYTES);
    t->value[0] = to;
    t->value[1] = from;
    meet(f, i, ~0u, publish_all);
}

void run_map_acquire(SlotGroup *f, const Insn *i)
{
    if (i->n == 0)
        return; /* a release */
    Published *p = published_at(address(f, i, &i->o[0], Sgeneric, MAPBYTES));
    if (p) {
        p->by = f->t->b;
        p->block = f->t->b->at;
    }
}

/* ---- a box --------------------------------------------------------------- */

static Map map_of(const Box *x)
{
    Map m;

    memcpy(&m, x->map, sizeof m);
    return m;
}

static const char *wrong_map(const Map *m, int rank)
{
    static const size_t span[4] = { 256 * 16, 32, 64, 128 };

    if (m->rank != rank || m->type >= NELEMENT)
        return "another rank, or no type";
    size_t size = (size_t)element[m->type];
    if (m->interleave || m->swizzle > 3 || m->fill > 1)
        return "a layout that is not known";
    if (m->base % 16 || m->box[0] * size % 16)
        return "a base or a row that is not of 16 bytes";
    if (m->box[0] * size > span[m->swizzle])
        return "a row longer than its swizzle";
    if (m->swizzle && m->box[0] * size != span[m->swizzle])
        return "a row shorter than its swizzle, which is not known";
    for (int d = 0; d < rank; d++) {
        if (m->box[d] == 0 || m->box[d] > 256 || m->dim[d] == 0)
            return "a box or a tensor without elements, or too large";
        if (m->step[d] != 1)
            return "steps other than 1";
        if (d && (m->stride[d - 1] % 16 || m->stride[d - 1] >> 40))
            return "a stride that is not of 16 bytes";
    }
    return NULL;
}

/* The map as the block's copies see it, and where its box begins. */
void box_read(SlotGroup *f, const Insn *i, const Operand *o, Box *to)
{
    uint64_t at = get_value(f, &o->part[0]) + (uint64_t)o->imm;
    const uint8_t *p = (const uint8_t *)(uintptr_t)at;
    const Published *known = published_at(p);
    const StepValues *b = f->t->b;
    Map m;

    if (at % 64)
        fail(EMISALIGNED, "a map at %#llx", (unsigned long long)at);
    global_bytes(at, MAPBYTES);
    if (known &&
        (known->by != b || memcmp(&known->block, &b->at, sizeof b->at)))
        fail(EFAILED, "a map that the block has not acquired");
    memcpy(to->map, p, MAPBYTES);
    memcpy(&m, p, sizeof m);
    const char *why = wrong_map(&m, i->dim);
    if (why)
        fail(EFAILED, "the map has %s", why);
    to->t = f->t;
    to->rank = i->dim;
    for (int d = 0; d < i->dim; d++)
        to->coord[d] = (int)get_int(f, &o->part[1].part[d], Ts32);
}

size_t box_bytes(const Box *x)
{
    Map m = map_of(x);
    size_t n = (size_t)element[m.type];

    for (int d = 0; d < x->rank; d++)
        n *= m.box[d];
    return n;
}

/* ---- rows of a box ------------------------------------------------------- */

typedef struct Row {
    uint64_t at;    /* in global memory: of the first element there */
    size_t skip, n; /* bytes before it in the row, bytes that are there */
} Row;

/* The k-th row of the box, clipped to the tensor; n is 0 outside of it. */
static Row row_of(const Box *x, const Map *m, size_t k)
{
    int64_t size = element[m->type], first = x->coord[0];
    int64_t last = first + m->box[0], outside = 0;
    uint64_t at = m->base;

    for (int d = 1; d < x->rank; d++) {
        int64_t c = x->coord[d] + (int64_t)(k % m->box[d]);
        k /= m->box[d];
        outside |= c < 0 || c >= (int64_t)m->dim[d];
        at += (uint64_t)c * m->stride[d - 1];
    }
    int64_t from = first < 0 ? 0 : first;
    int64_t to = last > (int64_t)m->dim[0] ? (int64_t)m->dim[0] : last;
    if (outside || from >= to)
        return (Row){ 0, 0, 0 };
    return (Row){ at + (uint64_t)(from * size), (size_t)((from - first) * size),
                  (size_t)((to - from) * size) };
}

static size_t row_bytes(const Map *m)
{
    return (size_t)(m->box[0] * element[m->type]);
}

/* The 16-byte piece at a shared address stands where the swizzle says. */
static uint32_t swizzled(const Map *m, uint32_t at)
{
    static const uint32_t mask[4] = { 0, 1, 3, 7 };

    return at ^ (at >> 7 & mask[m->swizzle]) << 4;
}

void box_load(const Box *x)
{
    Map m = map_of(x);
    size_t wide = row_bytes(&m), rows = box_bytes(x) / wide;
    uint8_t line[4096];

    for (size_t k = 0; k < rows; k++) {
        Row r = row_of(x, &m, k);
        memset(line, m.fill ? 0xff : 0, wide);
        if (r.n)
            memcpy(line + r.skip, global_bytes(r.at, r.n), r.n);
        for (size_t c = 0; c < wide; c += 16) {
            uint32_t to = swizzled(&m, x->at + (uint32_t)(k * wide + c));
            memcpy(x->b->shared + to, line + c, 16);
            proxy_filled(x->b, to, 16);
        }
    }
}

void box_take(const Box *x, uint8_t *to)
{
    Map m = map_of(x);
    size_t n = box_bytes(x);
    unsigned fence = proxy_fence_of(x->t);

    for (size_t c = 0; c < n; c += 16) {
        uint32_t from = swizzled(&m, x->at + (uint32_t)c);
        proxy_reads(x->b, from, 16, fence, to + c);
    }
}

void box_put(const Box *x, const uint8_t *from)
{
    Map m = map_of(x);
    size_t wide = row_bytes(&m), rows = box_bytes(x) / wide;

    for (size_t k = 0; k < rows; k++) {
        Row r = row_of(x, &m, k);
        if (r.n)
            memcpy(global_bytes(r.at, r.n), from + k * wide + r.skip, r.n);
    }
}

void box_add(const Box *x, const uint8_t *from)
{
    Map m = map_of(x);
    size_t wide = row_bytes(&m), rows = box_bytes(x) / wide;

    if (m.type != TYPEF32)
        fail(EFAILED, "only sums of fp32 are known");
    for (size_t k = 0; k < rows; k++) {
        Row r = row_of(x, &m, k);
        float *to = (float *)(void *)(r.n ? global_bytes(r.at, r.n) : NULL);
        for (size_t c = 0; c < r.n / 4; c++) {
            float v;
            memcpy(&v, from + k * wide + r.skip + c * 4, 4);
            to[c] += v;
        }
    }
}
