"""models/tiny.lua in PyTorch on the CPU, as fast as its user would write it.

    python3 tests/bench/torch_tiny.py [seconds]

Projections of one input are one product, pairs are sorted by expert and each
expert is one product, attention is the fused kernel where the version has one,
AdamW is the fastest variant it offers. A step is 64 sequences; micro-batches of
all sizes down to the model's 8 are tried, with 1 and 2 threads, and the best is
the number printed: "torch VERSION tokens/s N (...)". Weights are random and so
are the tokens: speed does not depend on either once routing is near uniform.
"""
import math
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print("torch is not installed: skipped")
    sys.exit(0)

SEQ, HIDDEN, KV, GROUP, DIM, FFN = 64, 128, 8, 2, 16, 256
EXPERTS, TOP, VOCAB, LAYERS, BATCH = 8, 2, 256, 3, 64


def rope_tables():
    freq = 1e4 ** (-torch.arange(0, DIM, 2) / DIM)
    angle = torch.outer(torch.arange(SEQ), freq).repeat(1, 2)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x):
        if hasattr(F, "rms_norm"):
            return F.rms_norm(x, (HIDDEN,), self.weight, 1e-5)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(HIDDEN, (KV * GROUP + 2 * KV) * DIM, bias=False)
        self.out = torch.nn.Linear(KV * GROUP * DIM, HIDDEN, bias=False)
        cos, sin = rope_tables()
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        self.register_buffer("mask", torch.full((SEQ, SEQ), -math.inf).triu(1))

    def forward(self, x):
        b = x.shape[0]
        qkv = self.qkv(x).view(b, SEQ, -1, DIM).transpose(1, 2)
        q, k, v = qkv.split((KV * GROUP, KV, KV), 1)
        q, k = rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)
        if hasattr(F, "scaled_dot_product_attention"):
            k, v = (t.repeat_interleave(GROUP, 1) for t in (k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            q = q.reshape(b, KV, GROUP * SEQ, DIM)      # groups share keys: one product
            s = (q @ k.transpose(-1, -2)).view(b, KV, GROUP, SEQ, SEQ) / math.sqrt(DIM)
            p = (s + self.mask).softmax(-1).view(b, KV, GROUP * SEQ, SEQ)
            y = (p @ v).view(b, KV * GROUP, SEQ, DIM)
        return self.out(y.transpose(1, 2).reshape(b, SEQ, -1))


class Moe(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.w13 = torch.nn.Parameter(0.02 * torch.randn(EXPERTS, HIDDEN, 2 * FFN))
        self.w2 = torch.nn.Parameter(0.02 * torch.randn(EXPERTS, FFN, HIDDEN))

    def forward(self, x):
        t = x.reshape(-1, HIDDEN)
        p = self.gate(t).softmax(-1)
        g, e = p.topk(TOP, -1)
        g = g / g.sum(-1, keepdim=True)
        count = torch.bincount(e.flatten(), minlength=EXPERTS)
        load = count / e.numel()
        aux = EXPERTS * (p.mean(0) * load).sum()
        order = e.flatten().argsort()
        token = order // TOP
        rows = t.index_select(0, token)
        out = []
        for i, r in enumerate(rows.split(count.tolist())):
            a, b = (r @ self.w13[i]).chunk(2, -1)
            out.append((F.silu(a) * b) @ self.w2[i])
        y = torch.cat(out) * g.flatten().index_select(0, order)[:, None]
        return torch.zeros_like(t).index_add_(0, token, y).view_as(x), aux


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.attn, self.n2, self.moe = Norm(), Attention(), Norm(), Moe()

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        y, aux = self.moe(self.n2(x))
        return x + y, aux


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, HIDDEN)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = torch.nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, tokens, labels):
        x, aux = self.embed(tokens), 0
        for layer in self.layers:
            x, a = layer(x)
            aux = aux + a
        logits = self.head(self.norm(x)).view(-1, VOCAB)
        return F.cross_entropy(logits, labels.flatten()) + 0.01 * aux


def optimizers(params):
    """Every variant of AdamW that this version has."""
    for how in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        try:
            opt = torch.optim.AdamW(params, lr=2e-3, betas=(0.9, 0.95), **how)
        except (TypeError, RuntimeError):
            continue
        yield next(iter(how)) if list(how.values())[0] else "loop", opt


def step(model, params, opt, data, micro):
    opt.zero_grad(set_to_none=True)
    for at in range(0, BATCH, micro):
        rows = data[at:at + micro]
        (model(rows[:, :-1], rows[:, 1:]) * (micro / BATCH)).backward()
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()


def timed(model, params, opt, data, micro, seconds):
    """The fastest step of some seconds of them."""
    step(model, params, opt, data, micro)
    t0, times = time.perf_counter(), []
    while time.perf_counter() - t0 < seconds or len(times) < 3:
        t = time.perf_counter()
        step(model, params, opt, data, micro)
        times.append(time.perf_counter() - t)
    return min(times)


def best(seconds):
    data = torch.randint(VOCAB, (BATCH, SEQ + 1))
    model, found = Tiny(), []
    params = list(model.parameters())
    name, opt = next(optimizers(params))
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for micro in (8, 16, 32, 64):
            secs = timed(model, params, opt, data, micro, seconds)
            found.append((secs, threads, micro, name))
    _, threads, micro, _ = min(found)
    torch.set_num_threads(threads)
    for name, opt in optimizers(params):
        secs = timed(model, params, opt, data, micro, seconds)
        found.append((secs, threads, micro, name))
    return min(found)


torch.manual_seed(0)
torch.set_flush_denormal(True)
secs, threads, micro, name = best(float(sys.argv[1]) if len(sys.argv) > 1 else 1.5)
print("torch %s tokens/s %.0f (%d threads, micro-batch %d, AdamW %s, %.1f ms a step)"
      % (torch.__version__, BATCH * SEQ / secs, threads, micro, name, 1e3 * secs))
