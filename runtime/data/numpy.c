/* numpy.c: functions of NumPy that determine an order of samples, to the bit:
 * numpy.random.RandomState(seed).shuffle (MT19937 and a Fisher-Yates shuffle
 * from the end, with numbers drawn by mask and rejection), and numpy.sum of
 * doubles (pairwise summation). */
#include "data.h"

enum { N = 624, M = 397, BLOCK = 128 };

/* Seeds the state by Knuth's generator, as NumPy does for an integer. */
void np_seed(NpRandom *random, uint32_t seed)
{
    for (int i = 0; i < N; i++) {
        random->key[i] = seed;
        seed = 1812433253u * (seed ^ seed >> 30) + (uint32_t)i + 1;
    }
    random->pos = N;
}

static void next_block(NpRandom *random)
{
    uint32_t *k = random->key;

    for (int i = 0; i < N; i++) {
        uint32_t y = (k[i] & 0x80000000u) | (k[(i + 1) % N] & 0x7fffffffu);
        k[i] = k[(i + M) % N] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    random->pos = 0;
}

uint32_t np_next(NpRandom *random)
{
    if (random->pos == N)
        next_block(random);
    uint32_t y = random->key[random->pos++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

/* Returns a number in 0 ... max. */
static uint32_t draw(NpRandom *random, uint32_t max)
{
    uint32_t mask = max, v;

    for (int i = 1; i < 32; i *= 2)
        mask |= mask >> i;
    do
        v = np_next(random) & mask;
    while (v > max);
    return v;
}

void np_shuffle(NpRandom *random, uint32_t *v, int64_t n)
{
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = draw(random, (uint32_t)i);
        uint32_t t = v[i];
        v[i] = v[j];
        v[j] = t;
    }
}

double np_sum(const double *v, int64_t n)
{
    double s[8], sum = 0;
    int64_t i = 0;

    if (n > BLOCK) {
        int64_t half = n / 2 - n / 2 % 8;
        return np_sum(v, half) + np_sum(v + half, n - half);
    }
    if (n >= 8) {
        for (; i < 8; i++)
            s[i] = v[i];
        for (; i < n - n % 8; i++)
            s[i % 8] += v[i];
        sum = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    }
    for (; i < n; i++)
        sum += v[i];
    return sum;
}
