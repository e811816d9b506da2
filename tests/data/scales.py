"""Prints what tests/unit/scales_test.c expects: the scales of blocks by the formulas
that Transformer Engine and torchao publish, in NumPy's fp32 and fp64: for each a sum
of the bits of its results by weights. Amax: all positive numbers of bf16 and 0, then
fp32 of random bits, none of them infinite or NaN, for which ours are NaN and theirs
are not. NumPy 2.4."""
import numpy as np

COUNT, BF16, MASK = 200_000, 0x7F80, 0xFFFFFFFF
f32 = np.float32
MOST = np.finfo(f32).max


def mixed(i):
    z = (i.astype(np.uint64) * 0x9E3779B9 + 0x7F4A7C15) & MASK
    z = ((z ^ (z >> 16)) * 0x85EBCA6B) & MASK
    z = ((z ^ (z >> 13)) * 0xC2B2AE35) & MASK
    return z ^ (z >> 16)


def of_bits(u):
    return u.astype(np.uint32).view(f32)


def bits(x):
    return x.astype(f32).view(np.uint32).astype(np.uint64)


def samples():
    u = mixed(np.arange(COUNT)) & 0x7FFFFFFF
    u = np.where(u >= 0x7F800000, u - 0x40000000, u)
    return of_bits(np.concatenate([np.arange(BF16, dtype=np.uint64) << 16, u]))


def power(e):  # 2^e, e integers from -127 on
    return np.ldexp(np.ones(len(e)), e).astype(f32)


def current(a, most):  # most / amax, of a tensor
    return np.where(a == 0, f32(1), np.minimum(f32(most) / a, MOST))


def block(a, most):  # its exponent alone, 1x128 and 128x128
    return of_bits(bits(current(a, most)) & 0xFF800000)


def clamped(a, most):  # torchao: amax_to_scale, float8_utils.py
    return (most / np.maximum(a.astype(np.float64), 1e-12)).astype(f32)


def clamped_power(a, most):  # ... with round_scales_to_power_of_2
    return np.exp2(np.floor(np.log2(clamped(a, most).astype(np.float64)))).astype(f32)


def e8m0(a, most):  # the biased exponent of amax / most, rounded up
    u = bits(a * (f32(1) / f32(most)))
    e, rest = u >> 23, u & 0x7FFFFF
    return (e + ((rest > 0) & (e != 254) & ~((e == 0) & (rest <= 0x400000)))).astype(int)


def stored(a, most):
    return power(e8m0(a, most) - 127)


def mx(a, most):
    e = e8m0(a, most)
    return np.where(e == 0, f32(1), power(127 - e))


def e4m3(x):  # to the nearest, ties to even, saturated; 3 bits from 2^-6 on
    x = np.minimum(x.astype(np.float64), 448)
    step = np.exp2(np.maximum(np.frexp(x)[1] - 1, -6) - 3)
    return (np.rint(x / step) * step).astype(f32)


def tensor(a):  # the largest of the tensor that a block of amax a may be in
    i = np.arange(len(a))
    part = f32(1) + of_bits(mixed(i) & 0x3FFFFFFF)
    return np.minimum(a * part * power(i % 14), MOST)


def nv_stored(a, _):
    t = current(tensor(a), 6 * 448)
    return e4m3(a * (f32(1) / f32(6)) * t)


def nv(a, _):
    t = current(tensor(a), 6 * 448)
    return np.minimum(t / nv_stored(a, _), MOST)


np.seterr(all="ignore")
amax = samples()
weight = mixed(np.arange(len(amax)) + 77) | 1
for name, scale, most, least in (
    ("te current e4m3", current, 448, 0),
    ("te current e5m2", current, 57344, 0),
    ("te block", block, 448, 0),
    ("torchao tensor", clamped, 448, 1e-12),
    ("torchao power", clamped_power, 448, 1e-12),
    ("te mx stored", stored, 448, 0),
    ("te mx", mx, 448, 0),
    ("te nv stored", nv_stored, 0, 1e-30),
    ("te nv", nv, 0, 1e-30),
):
    s = np.where(amax >= f32(least), bits(scale(amax, most)), 0)
    print(name, "%016x" % int((s * weight).sum()))
