"""Prints what tests/unit/math_test.c (narrow) expects: for each dtype the sum of
PyTorch's codes of its samples, by weights. e2m1, which PyTorch cannot cast to,
by the nearest of its values, ties to the even code. PyTorch 2.15; codes as of
what saturates, and of NaN without sign (ir/base/narrow.pre)."""
import torch

BF16, COUNT, MASK = 65536, 10_000_000, 0xFFFFFFFF


def mixed(i):
    z = (i * 0x9E3779B9 + 0x7F4A7C15) & MASK
    z = ((z ^ (z >> 16)) * 0x85EBCA6B) & MASK
    z = ((z ^ (z >> 13)) * 0xC2B2AE35) & MASK
    return z ^ (z >> 16)


def samples():
    i = torch.arange(COUNT)
    r = mixed(i)
    near = (r & 0x83FFFFFF) | ((105 + (r >> 26 & 31)) << 23)
    u = torch.cat([torch.arange(BF16) << 16, torch.where(i % 2 == 1, near, r)])
    return torch.where(u >= 2**31, u - 2**32, u).to(torch.int32).view(torch.float32)


def e2m1(x):
    value = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    code = torch.zeros_like(x, dtype=torch.int64)
    for k in range(7):
        middle = (value[k] + value[k + 1]) / 2
        code += (x.abs() > middle) | ((x.abs() == middle) & (k % 2 == 1))
    code += 8 * torch.signbit(x)
    return torch.where(x.isnan(), 7, code)


def cast(x, dtype, largest, nan):
    c = x.clamp(-largest, largest).to(dtype).view(torch.uint8).to(torch.int64)
    return torch.where(x.isnan(), nan, c)


x = samples()
weight = mixed(torch.arange(len(x)) + 77) | 1
for name, code in (
    ("e4m3", cast(x, torch.float8_e4m3fn, 448, 0x7F)),
    ("e5m2", cast(x, torch.float8_e5m2, 57344, 0x7F)),
    ("e8m0", cast(x, torch.float8_e8m0fnu, float("inf"), 0xFF)),
    ("e2m1", e2m1(x)),
):
    print(name, "%08x" % (int((code * weight).sum()) & MASK))
