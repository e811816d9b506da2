"""Reference numbers from Hugging Face transformers (needs torch, transformers and peft).

    python3 tests/hf/make.py [case ...]

For each case below, a tiny model with random weights, beside this file:

  <case>.safetensors      its weights, float32, under Hugging Face's names
  <case>.ref.safetensors  float64: `loss` (ten training losses), `grad.<name>`
                          (the gradient of every tensor at the first step);
                          olmoe: `loss.muon`, `loss.adafactor`, ten losses with those optimizers
  <case>.json             the configuration, and what the numbers were made with
  tokens.npy              what all cases train on, the same batch each step

and of each of IMPORTS, which only `pleat import` reads, the weights, the configuration
and <case>.logits.safetensors, the logits of each sequence's last positions,

and fp8.safetensors with fp8.ref.safetensors, which convert.sh imports.

Everything is computed in float64 from the float32 weights. transformers writes
float32 into its norms, softmaxes and rotary tables; `Fp64` and `no_float32`
turn that off and prove it. What is left is the order of summation.
"""
import json
import pathlib
import sys
import tempfile

import numpy
import peft
import torch
import torch.optim._muon
import transformers
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.optimization import Adafactor
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.llama import modeling_llama
from transformers.models.mixtral import modeling_mixtral
from transformers.models.olmoe import modeling_olmoe
from transformers.models.qwen2_moe import modeling_qwen2_moe
from transformers.models.qwen3_moe import modeling_qwen3_moe

HERE = pathlib.Path(__file__).parent
BATCH, SEQ, VOCAB, STEPS = 2, 32, 256, 10
MUON = dict(lr=1e-3, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
ADAFACTOR = dict(lr=1e-3, scale_parameter=True, relative_step=False, weight_decay=0.1)
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
IGNORED = 7             # in cases with `ignore`: a label that takes no part
COMMON = dict(vocab_size=VOCAB, hidden_size=64, num_attention_heads=4,
              num_key_value_heads=2, num_experts_per_tok=2, initializer_range=0.1,
              max_position_embeddings=64, tie_word_embeddings=False,
              attn_implementation="eager", experts_implementation="eager")

YARN = dict(rope_type="yarn", rope_theta=1e4, factor=40, beta_fast=32, beta_slow=1,
            original_max_position_embeddings=16)
DSV3 = dict(
    **{**COMMON, "num_key_value_heads": 4}, num_hidden_layers=2,
    intermediate_size=48, moe_intermediate_size=20, n_routed_experts=8,
    n_shared_experts=1, n_group=4, topk_group=2, first_k_dense_replace=1,
    q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8,
    v_head_dim=12, routed_scaling_factor=2.5, norm_topk_prob=True,
    rms_norm_eps=1e-6, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))

# names: hub, one tensor an expert; state, transformers 5's fused experts
CASES = {
    "mixtral": dict(
        names="hub", config=transformers.MixtralConfig(
            **COMMON, num_hidden_layers=2, intermediate_size=24,
            num_local_experts=8, rms_norm_eps=1e-5,
            rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "mixtral-aux": dict(
        names="state", config=transformers.MixtralConfig(
            **COMMON, num_hidden_layers=2, intermediate_size=24,
            num_local_experts=8, rms_norm_eps=1e-5, output_router_logits=True,
            router_aux_loss_coef=0.02,
            rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "qwen2": dict(
        names="hub", config=transformers.Qwen2MoeConfig(
            **COMMON, num_hidden_layers=2, num_experts=8, norm_topk_prob=False,
            moe_intermediate_size=24, shared_expert_intermediate_size=40,
            rms_norm_eps=1e-6,
            rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "qwen3": dict(
        names="hub", ignore=True, config=transformers.Qwen3MoeConfig(
            **COMMON, num_hidden_layers=2, head_dim=24, num_experts=8,
            moe_intermediate_size=24, norm_topk_prob=True, rms_norm_eps=1e-6,
            rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "qwen3-lora": dict(lora="qwen3", ignore=True),
    "olmoe": dict(
        names="state", optimizers=("muon", "adafactor"), config=transformers.OlmoeConfig(
            **{**COMMON, "num_key_value_heads": 4}, num_hidden_layers=2,
            intermediate_size=24, num_experts=8, norm_topk_prob=False,
            rms_norm_eps=1e-5, pad_token_id=None,
            rope_parameters=dict(rope_type="default", rope_theta=1e4))),
    "dsv2": dict(
        names="hub", config=transformers.DeepseekV2Config(
            **{**COMMON, "num_key_value_heads": 4}, num_hidden_layers=2,
            intermediate_size=48, moe_intermediate_size=20, n_routed_experts=8,
            n_shared_experts=2, n_group=4, topk_group=2,
            topk_method="group_limited_greedy", first_k_dense_replace=1,
            q_lora_rank=None, kv_lora_rank=16, qk_nope_head_dim=16,
            qk_rope_head_dim=8, v_head_dim=12, routed_scaling_factor=1.5,
            rms_norm_eps=1e-6, rope_parameters=dict(
                YARN, mscale=0.707, mscale_all_dim=0.707))),
    "dsv3": dict(names="hub", config=transformers.DeepseekV3Config(**DSV3)),
    "dsv3-mtp": dict(
        names="state", ignore=True, mtp=2, mtp_weight=0.3,
        config=transformers.DeepseekV3Config(**DSV3)),
}

# Adapters of PEFT on the case of the same name
LORA = dict(r=4, lora_alpha=10, target_modules=["q_proj", "v_proj", "o_proj"])
CASES["qwen3-lora"]["config"] = CASES["qwen3"]["config"]

# What published folders of a family have beside those above
SMALL = dict(COMMON, hidden_size=32, num_hidden_layers=2)
LATENT = dict(SMALL, num_key_value_heads=4, intermediate_size=48, moe_intermediate_size=20,
              n_routed_experts=4, n_shared_experts=2, first_k_dense_replace=1, kv_lora_rank=16,
              qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, rms_norm_eps=1e-6)
IMPORTS = {
    "llama": dict(names="hub", config=transformers.LlamaConfig(
        **{**SMALL, "tie_word_embeddings": True}, intermediate_size=48, attention_bias=True,
        rms_norm_eps=1e-5, rope_parameters=dict(
            rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0,
            high_freq_factor=4.0, original_max_position_embeddings=16))),
    "mixtral-window": dict(names="hub", config=transformers.MixtralConfig(
        **SMALL, intermediate_size=24, num_local_experts=4, sliding_window=7, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0))),
    "qwen3-yarn": dict(names="hub", config=transformers.Qwen3MoeConfig(
        **SMALL, head_dim=24, num_experts=4, moe_intermediate_size=24, norm_topk_prob=True,
        rms_norm_eps=1e-6, rope_parameters=dict(
            rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16))),
    "dsv2-latent": dict(names="hub", config=transformers.DeepseekV2Config(
        **LATENT, q_lora_rank=24, topk_method="greedy", routed_scaling_factor=1.5,
        rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))),
    "dsv3-plain": dict(names="hub", config=transformers.DeepseekV3Config(
        **LATENT, q_lora_rank=None, n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=2.446, rope_parameters=dict(rope_type="default", rope_theta=5e4))),
}
KEPT = 4                # positions of each sequence whose logits are kept


class Fp64:
    """The torch module as a model's source sees it: float32 means float64."""
    float = float32 = bfloat16 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


class no_float32(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor) and t.dtype == torch.float32:
                raise TypeError(f"{func} computes in float32")
        return out


class Further(modeling_deepseek_v3.DeepseekV3DecoderLayer):
    """A layer for the token after those the layer before saw (Liu et al. 2024, 2.2).
    Names are those of the published checkpoint, whose layer 61 this is."""

    def __init__(self, model, at):
        super().__init__(model.config, at)
        norm, n = modeling_deepseek_v3.DeepseekV3RMSNorm, model.config.hidden_size
        self.enorm, self.hnorm = norm(n, eps=1e-6), norm(n, eps=1e-6)
        self.eh_proj = torch.nn.Linear(2 * n, n, bias=False)
        self.shared_head = torch.nn.Module()
        self.shared_head.norm = norm(n, eps=1e-6)
        self.apply(model._init_weights)

    def further(self, model, h, ids):
        e = model.model.embed_tokens(ids)
        z = self.eh_proj(torch.cat([self.enorm(e), self.hnorm(h)], -1))
        at = torch.arange(ids.shape[1])[None]
        mask = torch.full((ids.shape[1],) * 2, -torch.inf).triu(1)[None, None]
        z = self.forward(z, attention_mask=mask, position_ids=at,
                         position_embeddings=model.model.rotary_emb(z, at))
        return self.shared_head.norm(z)


def add_mtp(model, n, weight):
    """n layers after the model's own, which its forward does not run; each adds its
    share of a loss over the positions that have a token so far ahead."""
    own = model.config.num_hidden_layers
    for k in range(n):
        model.model.layers.append(Further(model, own + k))
    forward = model.forward

    def with_mtp(input_ids, labels, shift_labels):
        out = forward(input_ids=input_ids, labels=labels, shift_labels=shift_labels)
        h = model.model(input_ids).last_hidden_state
        for k in range(1, n + 1):
            ids = torch.nn.functional.pad(input_ids[:, k:], (0, k))
            want = torch.nn.functional.pad(labels[:, k:], (0, k), value=-100)
            h = model.model.layers[own + k - 1].further(model, h, ids)
            out.loss = out.loss + weight / n * torch.nn.functional.cross_entropy(
                model.lm_head(h).flatten(0, 1), want.flatten())
        return out

    model.forward = with_mtp


def add_lora(model):
    """PEFT's model, whose lora_B is not zero."""
    model = peft.get_peft_model(model, peft.LoraConfig(**LORA))
    with torch.no_grad():
        for name, t in model.named_parameters():
            if ".lora_" in name:
                t.copy_((0.1 * torch.randn(t.shape)).to(torch.float32))
    return model


def make_model(case, seed):
    """Random weights, exact in float32; norms around 1, so that they matter."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(case["config"])
    if "mtp" in case:
        add_mtp(model, case["mtp"], case["mtp_weight"])
    model.set_experts_implementation("eager")
    with torch.no_grad():
        for name, t in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name:
                t.copy_(1 + 0.2 * torch.randn(t.shape))
            elif "correction_bias" in name:
                t.copy_(0.1 * torch.randn(t.shape))
            elif name.endswith("bias"):
                t.copy_(0.2 * torch.randn(t.shape))
            if "inv_freq" not in name:
                t.copy_(t.to(torch.float32))
    return add_lora(model) if "lora" in case else model


def adapters(tensors):
    """Of PEFT's model, under the names of its files."""
    return {k.replace(".default", ""): v for k, v in tensors.items() if ".lora_" in k}


def named(model, tensors, names):
    """tensors (by the model's parameter names) under the names of the case."""
    if names == "state":
        return tensors
    with torch.no_grad():
        for name, t in [*model.named_parameters(), *model.named_buffers()]:
            if name in tensors:
                t.copy_(tensors[name])
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        out = load_file(d + "/model.safetensors")
    return {k: v for k, v in out.items() if not k.endswith("correction_bias")
            or k.replace(".block_sparse_moe", "") in tensors}


def pieces(name, v, heads):
    """The parts of a parameter of OLMoE that have matrices or vectors of their own: of each
    head, of each expert."""
    if "experts" in name:
        return [x for e in v for x in e.chunk(2 if "gate_up" in name else 1)]
    if ".gate.weight" in name:
        return list(v)
    if "_proj" in name or "q_norm" in name or "k_norm" in name:
        return v.chunk(heads, 1 if "o_proj" in name else 0)
    return [v]


class InPieces(torch.optim.Optimizer):
    """An optimizer on pieces. muon: torch.optim.Muon, its bfloat16 being float64, with AdamW
    on embedding, head, router and norms; adafactor: transformers' on all."""

    def __init__(self, named_parameters, heads, kind):
        named = [(k, p) for k, p in named_parameters]
        super().__init__([p for _, p in named], {})
        self.cut, rest = [], []
        for name, p in named:
            v = pieces(name, p.data, heads)
            if kind == "muon" and (v[0].dim() < 2 or "embed" in name or "lm_head" in name):
                rest.append(p)
            else:
                self.cut.append((p, v, [torch.nn.Parameter(x.clone()) for x in v]))
        own = [x for c in self.cut for x in c[2]]
        self.by = [torch.optim.Muon(own, **MUON), torch.optim.AdamW(rest, **ADAMW)] \
            if kind == "muon" else [Adafactor(own, **ADAFACTOR)]

    def step(self):
        for p, views, own in self.cut:
            for v, x in zip(views, own):
                x.grad = torch.as_strided(p.grad, v.shape, v.stride(), v.storage_offset())
        for by in self.by:
            by.step()
        for _, views, own in self.cut:
            for v, x in zip(views, own):
                v.copy_(x.data)


def batch(ignore):
    rows = torch.from_numpy(numpy.load(HERE / "tokens.npy")).long()
    tokens, labels = rows[:, :-1], rows[:, 1:].contiguous()
    return tokens, labels.masked_fill(labels == IGNORED, -100) if ignore else labels


def run(case, seed, noise=0.0, by=None):
    """Ten steps: the model, its first weights and gradients, the losses, and the
    experts chosen. noise: relative change of the weights. by: an optimizer InPieces."""
    model = make_model(case, seed)
    weights = {k: v.detach().clone() for k, v in model.state_dict().items()}
    params = dict(model.named_parameters())
    with torch.no_grad():
        for p in params.values():
            p.mul_(1 + noise * torch.randn(p.shape))
    chosen = []
    for name, m in model.named_modules():
        if name.endswith(".gate"):
            m.register_forward_hook(
                lambda m, a, out: chosen.append(out[2].sort().values))
    tokens, labels = batch(case.get("ignore"))
    opt = InPieces(params.items(), case["config"].num_attention_heads, by) if by else \
        torch.optim.AdamW(params.values(), **ADAMW)
    losses, grads = [], {}
    with no_float32():
        for _ in range(STEPS):
            opt.zero_grad()
            loss = model(input_ids=tokens, labels=labels, shift_labels=labels).loss
            loss.backward()
            losses.append(loss.item())
            grads = grads or {k: p.grad.clone() for k, p in params.items() if p.requires_grad}
            opt.step()
    return model, weights, grads, losses, torch.stack(chosen)


def write(name, case, seed):
    model, weights, grads, losses, chosen = run(case, seed)
    for _ in range(3):      # else the numbers would test luck in ties
        if not torch.equal(chosen, run(case, seed, noise=3e-7)[4]):
            raise SystemExit(f"{name}: float32 may choose other experts; try a seed")
    if "lora" in case:
        w = {**load_file(HERE / f"{case['lora']}.safetensors"), **adapters(weights)}
        g = adapters(grads)
    else:
        w = named(model, weights, case["names"])
        g = named(model, grads, case["names"])
    save_file({k: v.to(torch.float32).contiguous() for k, v in w.items()},
              HERE / f"{name}.safetensors", {"format": "pt"})
    others = {}
    for by in case.get("optimizers", ()):
        others["loss." + by] = torch.tensor(run(case, seed, by=by)[3], dtype=torch.float64)
    save_file({"loss": torch.tensor(losses, dtype=torch.float64), **others,
               **{"grad." + k: v.contiguous() for k, v in g.items()}},
              HERE / f"{name}.ref.safetensors")
    info = dict(made_with=dict(torch=torch.__version__, seed=seed,
                               transformers=transformers.__version__),
                adamw=ADAMW, names=case.get("names"), lora=LORA if "lora" in case else None, loss=losses,
                config=case["config"].to_diff_dict())
    (HERE / f"{name}.json").write_text(json.dumps(info, indent=2) + "\n")
    print(name, *["%.6f" % x for x in losses])


def write_logits(name, case, seed):
    model = make_model(case, seed).eval()
    w = named(model, {k: v.clone() for k, v in model.state_dict().items()}, case["names"])
    save_file({k: v.to(torch.float32).contiguous() for k, v in w.items()},
              HERE / f"{name}.safetensors", {"format": "pt"})
    with torch.no_grad(), no_float32():
        logits = model(input_ids=batch(None)[0]).logits
    save_file({"logits": logits[:, -KEPT:].contiguous()}, HERE / f"{name}.logits.safetensors")
    info = dict(made_with=dict(torch=torch.__version__, seed=seed,
                               transformers=transformers.__version__),
                names=case["names"], config=case["config"].to_diff_dict())
    (HERE / f"{name}.json").write_text(json.dumps(info, indent=2) + "\n")
    print(name, logits.abs().max().item())


def write_fp8(name, n=140, k=150, block=128):
    """Weights as DeepSeek quantises them (its inference/kernel.py): e4m3 elements and
    `weight_scale_inv`, a float32 for each block; <name>.ref has their products."""
    g = torch.Generator().manual_seed(3)
    w, ref = {}, {}
    for key, shape in (("up", (n, k)), ("down", (k, n))):
        x = torch.randn(shape, generator=g, dtype=torch.float32)
        scale = torch.empty([(d + block - 1) // block for d in shape], dtype=torch.float32)
        q, y = torch.empty(shape, dtype=torch.float8_e4m3fn), torch.empty(shape).to(torch.float32)
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                at = (slice(i * block, (i + 1) * block), slice(j * block, (j + 1) * block))
                scale[i, j] = x[at].abs().max() / 448 * (1 + i + j)
                q[at] = (x[at] / scale[i, j]).to(torch.float8_e4m3fn)
                y[at] = q[at].to(torch.float32) * scale[i, j]
        w[key + ".weight"], w[key + ".weight_scale_inv"] = q, scale
        ref[key + ".weight"] = y
    for key in ("embed", "head"):
        w[key + ".weight"] = torch.randn((16, k), generator=g).to(torch.bfloat16)
        ref[key + ".weight"] = w[key + ".weight"].to(torch.float32)
    save_file(w, HERE / f"{name}.safetensors", {"format": "pt"})
    save_file(ref, HERE / f"{name}.ref.safetensors", {"format": "pt"})
    print(name)


def only_float64():
    """Turns off what transformers writes in float32; before models are made."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    torch.optim._muon.torch = Fp64()
    for m in (modeling_llama, modeling_mixtral, modeling_qwen2_moe, modeling_qwen3_moe,
              modeling_olmoe, modeling_deepseek_v2, modeling_deepseek_v3,
              transformers.modeling_rope_utils):
        m.torch = Fp64()


def main():
    only_float64()
    rows = torch.randint(VOCAB, (BATCH, SEQ + 1),
                         generator=torch.Generator().manual_seed(1))
    rows[0, 5] = rows[1, 8] = IGNORED
    numpy.save(HERE / "tokens.npy", rows.numpy().astype("uint8"))
    for name in sys.argv[1:] or [*CASES, *IMPORTS, "fp8"]:
        if name == "fp8":
            write_fp8(name)
        elif name in IMPORTS:
            write_logits(name, IMPORTS[name], seed=1)
        else:
            write(name, CASES[name], seed=1)


if __name__ == "__main__":
    main()
