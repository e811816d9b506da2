/* digest.c: see ir.h. A digest of reach 0 is of a node alone, one of reach
 * k + 1 of that and of its operands' digests of reach k. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "ir.h"

static const uint8_t attr_bytes[] = {
#define OP(name, cls, operands, attrs, special, grad, lower) \
    sizeof(struct name##_attrs),
#include "ops.def"
#undef OP
};

/* Numbers and names that passes keep in a node are not of it. */
static uint64_t alone(const Node *n)
{
    uint64_t h = (uint64_t)n->op | (uint64_t)n->dt << 16 |
                 (uint64_t)n->reg << 32 | (uint64_t)n->nd << 48;

    h = mix64(h, XXH3_64bits(n->dim, (size_t)n->nd * sizeof *n->dim));
    h = mix64(h, XXH3_64bits(&n->at, attr_bytes[n->op]));
    h = mix64(h, XXH3_64bits(n->in, (size_t)n->nin * sizeof *n->in));
    return mix64(mix64(h, KEYP(n->map)), KEYP(n->sh));
}

uint64_t node_digest(NodeDigest *of, const Node *n)
{
    NodeDigest *mine = &of[n->id];

    mine->reach[0] = alone(n);
    for (int k = 1; k < DIGESTREACH; k++) {
        uint64_t h = mine->reach[k - 1];
        for (int i = 0; i < n->nin; i++)
            h = mix64(h, of[n->in[i]->id].reach[k - 1]);
        if (n->map)
            h = mix64(h, of[n->map->id].reach[k - 1]);
        mine->reach[k] = h;
    }
    return mine->reach[DIGESTREACH - 1];
}
