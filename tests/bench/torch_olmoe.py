"""transformers' OLMoE: random first weights, and its training of them.

    torch_olmoe.py init FOLDER LAYERS HIDDEN HEADS FFN EXPERTS TOP VOCAB
    torch_olmoe.py train FOLDER TOKENS.bin SEQ BATCH STEPS LR OUT.jsonl

`init` writes a Hugging Face folder, of bf16, and `train` trains what lies in one: a
step takes the next BATCH sequences of TOKENS (u16), one micro-batch. On a GPU weights
and activations are bf16 and AdamW has fp32 copies, elsewhere all is fp32. AdamW, clip,
warm-up, cosine and losses are those of olmoe_long.sh. OUT gets a line a step.
"""
import json
import math
import sys
import time

import numpy
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, OlmoeConfig
from transformers.models.olmoe.modeling_olmoe import load_balancing_loss_func

GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if GPU else ("cpu", torch.float32)


def init(folder, *sizes):
    layers, hidden, heads, ffn, experts, top, vocab = map(int, sizes)
    torch.manual_seed(1)
    config = OlmoeConfig(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads,
        num_key_value_heads=heads, intermediate_size=ffn, num_experts=experts,
        num_experts_per_tok=top, vocab_size=vocab, norm_topk_prob=False, rms_norm_eps=1e-5,
        pad_token_id=None, bos_token_id=None, eos_token_id=None, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="default", rope_theta=1e4))
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)


class Losses:
    """lm, and of each layer the two losses of its router, by transformers' function."""

    def __init__(self, model):
        self.model, self.config, self.seen = model, model.config, []
        for name, module in model.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(self.route)

    def route(self, gate, args, _):
        x = args[0].reshape(-1, gate.weight.shape[1])
        logits, c = F.linear(x, gate.weight).float(), self.config
        balance = load_balancing_loss_func((logits,), c.num_experts, c.num_experts_per_tok)
        self.seen.append((balance / c.num_experts_per_tok,
                          torch.logsumexp(logits, -1).square().mean()))

    def __call__(self, rows):
        self.seen.clear()
        tokens, labels = rows[:, :-1], rows[:, 1:]
        logits = self.model(input_ids=tokens, use_cache=False).logits
        lm = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        balance, z = (sum(v) for v in zip(*self.seen))
        return lm + 0.01 * balance + 1e-3 * z, lm


def rate(step, steps, lr):
    """Of step, from 0: warm-up over a tenth, then a cosine to a tenth of lr."""
    warm = steps // 10
    if step < warm:
        return lr * (step + 1) / warm
    return lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm))))


def train(folder, tokens, seq, batch, steps, lr, out):
    seq, batch, steps, lr = int(seq), int(batch), int(steps), float(lr)
    data = numpy.fromfile(tokens, numpy.uint16).astype(numpy.int64)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPE).to(DEVICE).train()
    model.set_experts_implementation("grouped_mm" if GPU else "eager")
    losses, params = Losses(model), list(model.parameters())
    masters = [p.detach().float().clone() for p in params] if GPU else params
    opt = torch.optim.AdamW(masters, lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1,
                            fused=True)
    curve, begun = [], time.time()
    for step in range(steps):
        at = step * batch * seq
        rows = numpy.stack([data[at + i * seq:at + (i + 1) * seq + 1] for i in range(batch)])
        loss, lm = losses(torch.from_numpy(rows).to(DEVICE))
        for p in params:
            p.grad = None
        loss.backward()
        if GPU:
            for m, p in zip(masters, params):
                m.grad = p.grad.float()
        norm = torch.nn.utils.clip_grad_norm_(masters, 1.0)
        for group in opt.param_groups:
            group["lr"] = rate(step, steps, lr)
        opt.step()
        if GPU:
            with torch.no_grad():
                torch._foreach_copy_(params, masters)
        curve.append(torch.stack([loss.detach(), lm.detach(), norm]))
    curve = torch.stack(curve).tolist()
    took = (time.time() - begun) / steps
    with open(out, "w") as f:
        for step, (loss, lm, norm) in enumerate(curve, 1):
            print(json.dumps({"step": step, "loss": loss, "lm": lm, "grad_norm": norm,
                              "step_ms": took * 1e3}), file=f)


{"init": init, "train": train}[sys.argv[1]](*sys.argv[2:])
