"""Hugging Face folders through Pleat and back (needs torch and transformers 5).

    python3 tests/hf/folders.py [--keep DIR] [name ...]      PLEAT=build/pleat
    python3 tests/hf/folders.py --fixtures      writes tests/hf/folders, which folders.sh reads

Each case is a folder that save_pretrained of transformers wrote, with a config class's sizes
reduced, and what publishers change in one: shards, bf16, tied embeddings, FP8 blocks, the keys
of transformers 4. `import` makes its model, `logits` computes with it, `run` trains it for a step
at rate 0, `export` writes a folder again. Compared are

    logits of Pleat in fp64 with those of transformers: 1e-4 of the largest;
    the tensors of the exported folder as transformers holds them, to the bit; as bf16 those that
    transformers makes of the original folder, and the dtypes that save_pretrained writes;
    config.json as its class reads it.

A case with a text is refused by one line with that text, and status 1. Prints a line a case.
"""
import argparse
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
HERE = pathlib.Path(__file__).resolve().parent
PLEAT = os.path.abspath(os.environ.get("PLEAT", HERE.parents[1] / "build/pleat"))
VOCAB, PROMPT = 320, "set -e"

# ---- configurations ----------------------------------------------------------------

BASE = dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=128, initializer_range=0.1, bos_token_id=1, eos_token_id=2,
            pad_token_id=0)
MOE = dict(BASE, num_experts_per_tok=2)
LATENT = dict(MOE, intermediate_size=96, moe_intermediate_size=32, n_routed_experts=8, n_shared_experts=1,
              first_k_dense_replace=1, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8,
              v_head_dim=16, n_group=1, topk_group=1)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=32)
KIND = {
    "mixtral": ("Mixtral", dict(MOE, num_key_value_heads=2, intermediate_size=48, num_local_experts=8)),
    "qwen2": ("Qwen2Moe", dict(MOE, num_key_value_heads=2, intermediate_size=96, moe_intermediate_size=32,
                               shared_expert_intermediate_size=48, num_experts=8)),
    "qwen3": ("Qwen3Moe", dict(MOE, num_key_value_heads=2, head_dim=24, intermediate_size=96,
                               moe_intermediate_size=32, num_experts=8, norm_topk_prob=True)),
    "olmoe": ("Olmoe", dict(MOE, intermediate_size=48, num_experts=8)),
    "dsv2": ("DeepseekV2", dict(LATENT, q_lora_rank=None, num_key_value_heads=4)),
    "dsv3": ("DeepseekV3", dict(LATENT, q_lora_rank=24, num_key_value_heads=4, n_group=2)),
    "llama": ("Llama", dict(BASE, num_key_value_heads=2, intermediate_size=96)),
}


def config_of(kind, **more):
    name, sizes = KIND[kind]
    return getattr(transformers, name + "Config")(**{**sizes, **more})


# ---- folders -----------------------------------------------------------------------

def save_tokenizer(folder, vocab=VOCAB):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    text = [(HERE.parents[1] / "README.md").read_text()]
    t.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=["<pad>", "<bos>", "<eos>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=t, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>").save_pretrained(folder)


def save(folder, config, dtype=torch.float32, shard="5GB", vocab=VOCAB, steps=0):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    for name, x in model.state_dict().items():          # norms and biases that matter
        x += (0.1 if x.ndim == 1 else 0.2 if steps else 0) * torch.randn(x.shape).to(x.dtype)
        if steps:                                       # of 1, in which weights are whole
            x.copy_((x * steps).round() / steps)
    model.save_pretrained(folder, max_shard_size=shard)
    save_tokenizer(folder, vocab)


def edit(folder, remove=(), **change):
    path = pathlib.Path(folder) / "config.json"
    config = {k: v for k, v in json.loads(path.read_text()).items() if k not in remove}
    path.write_text(json.dumps({**config, **change}, indent=2))


def as_version_4(folder):
    """The keys of a config.json that transformers 4 wrote."""
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    rope = config["rope_parameters"]
    scaling = {k: v for k, v in rope.items() if k != "rope_theta"} if rope["rope_type"] != "default" else None
    edit(folder, ("rope_parameters", "dtype"), rope_theta=rope["rope_theta"], rope_scaling=scaling,
         torch_dtype=config["dtype"], transformers_version="4.46.0")


def without_defaults(folder):
    """Only the keys whose values are not those of the class."""
    config = transformers.AutoConfig.from_pretrained(folder)
    kept = config.to_diff_dict()
    edit(folder, [k for k in json.loads((pathlib.Path(folder) / "config.json").read_text())
                  if k not in kept and k not in ("model_type", "architectures", "dtype")])


def as_fp8(folder, block=128, kept=("embed_tokens", "lm_head", "norm", "gate.weight", "bias")):
    """Matrices in FP8 with a scale for each block, as DeepSeek publishes them."""
    path, out, plain = f"{folder}/model.safetensors", {}, {}
    for name, x in load_file(path).items():
        if x.ndim != 2 or any(k in name for k in kept):
            out[name] = plain[name] = x
            continue
        rows, cols = (-(-n // block) for n in x.shape)
        full = torch.zeros(rows * block, cols * block)
        full[:x.shape[0], :x.shape[1]] = x.float()
        blocks = full.view(rows, block, cols, block)
        scale = blocks.abs().amax((1, 3)).clamp(min=1e-12) / 448
        small = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        one = lambda t: t.reshape(full.shape)[:x.shape[0], :x.shape[1]].contiguous()
        out[name], out[name + "_scale_inv"] = one(small), scale
        plain[name] = one(small.float() * scale[:, None, :, None])
    shutil.copytree(folder, f"{folder}-plain")          # transformers reads FP8 on GPUs
    save_file(plain, f"{folder}-plain/model.safetensors", {"format": "pt"})
    save_file(out, path, {"format": "pt"})
    edit(folder, quantization_config=dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                                          weight_block_size=[block, block]))


def as_kimi(folder):
    as_fp8(folder)
    as_version_4(folder)
    edit(folder, ("head_dim", "pad_token_id", "rope_interleave"), model_type="kimi_k2", aux_loss_alpha=0.001,
         ep_size=1, moe_layer_freq=1, num_nextn_predict_layers=0, scoring_func="sigmoid", seq_aux=True,
         topk_method="noaux_tc", auto_map={"AutoConfig": "configuration_deepseek.DeepseekV3Config"})
    os.rename(f"{folder}/tokenizer.json", f"{folder}/tiktoken.model")


def some_float32(folder):
    """Norms in fp32 beside matrices in bf16."""
    path = f"{folder}/model.safetensors"
    save_file({k: x.float() if "norm" in k else x for k, x in load_file(path).items()}, path, {"format": "pt"})


def as_cache(folder):
    """A snapshot of the hub's cache: links to blobs."""
    blobs, snapshot = pathlib.Path(folder) / "../blobs", pathlib.Path(folder)
    blobs.mkdir()
    for i, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(blobs / f"{i:040x}")
        path.symlink_to(f"../blobs/{i:040x}")


BF16 = dict(dtype=torch.bfloat16)
BIG = dict(hidden_size=160, moe_intermediate_size=136, intermediate_size=136)
# name: (kind, changes of the configuration, how it is saved, what is done to the folder, refused by)
CASES = {}
for kind in KIND:
    CASES[kind] = (kind, {}, {}, None, None)
    CASES[kind + "-bf16-shards"] = (kind, {}, dict(BF16, shard="60KB"), None, None)
    CASES[kind + "-tied"] = (kind, dict(tie_word_embeddings=True, pad_token_id=None), {}, None, None)
    CASES[kind + "-version4"] = (kind, {}, BF16, as_version_4, None)
    CASES[kind + "-defaults"] = (kind, {}, {}, without_defaults, None)
CASES |= {
    "llama-llama3": ("llama", dict(rope_parameters=dict(
        rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=32)), {}, None, None),
    "llama-biases": ("llama", dict(attention_bias=True), {}, None, None),
    "llama-mlp-bias": ("llama", dict(mlp_bias=True), {}, None, "mlp_bias"),
    "llama-dynamic": ("llama", dict(rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0)),
                      {}, None, "type 'dynamic'"),
    "mixtral-window": ("mixtral", dict(sliding_window=5), {}, None, None),
    "mixtral-linear": ("mixtral", dict(rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0)),
                       {}, None, None),
    "mixtral-fp16": ("mixtral", {}, dict(dtype=torch.float16), None, None),
    "mixtral-jitter": ("mixtral", dict(router_jitter_noise=0.1), {}, None, None),
    "qwen3-yarn": ("qwen3", dict(rope_parameters=YARN), {}, None, None),
    "qwen3-biases": ("qwen3", dict(attention_bias=True), {}, None, "attention_bias"),
    "qwen3-dense-layers": ("qwen3", dict(mlp_only_layers=[0]), {}, None, "mlp_only_layers"),
    "qwen3-fp8": ("qwen3", BIG, BF16, as_fp8, None),
    "qwen3-fp8-64": ("qwen3", BIG, BF16, lambda f: as_fp8(f, 64), "weight_block_size"),
    "qwen3-fp8-100": ("qwen3", BIG, BF16, lambda f: as_fp8(f, 100), "weight_block_size"),
    "qwen3-awq": ("qwen3", {}, BF16, lambda f: edit(f, quantization_config=dict(quant_method="awq")), "awq"),
    "qwen3-float32-norms": ("qwen3", {}, BF16, some_float32, None),
    "qwen3-cache": ("qwen3", {}, BF16, as_cache, None),
    "qwen2-no-bias": ("qwen2", dict(qkv_bias=False), {}, None, "qkv_bias"),
    "qwen2-sparse": ("qwen2", dict(decoder_sparse_step=2), {}, None, "decoder_sparse_step"),
    "olmoe-clip": ("olmoe", dict(clip_qkv=4.0), {}, None, "clip_qkv"),
    "olmoe-groups": ("olmoe", dict(num_key_value_heads=2), {}, None, "num_key_value_heads"),
    "dsv2-yarn": ("dsv2", dict(q_lora_rank=24, rope_parameters=dict(YARN, mscale=0.707, mscale_all_dim=0.707)),
                  {}, None, None),
    "dsv2-groups": ("dsv2", dict(topk_method="group_limited_greedy", n_group=2, routed_scaling_factor=1.5),
                    BF16, None, None),
    "dsv2-greedy-groups": ("dsv2", dict(topk_method="greedy", n_group=4, topk_group=2), BF16, None, None),
    "dsv3-yarn": ("dsv3", dict(rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0)), {}, None, None),
    "dsv3-no-latent-query": ("dsv3", dict(q_lora_rank=None), BF16, None, None),
    "dsv3-fp8": ("dsv3", BIG, BF16, as_fp8, None),
    "kimi": ("dsv3", dict(BIG, n_group=1, topk_group=1, routed_scaling_factor=2.827), BF16, as_kimi, None),
}


# ---- fixtures ----------------------------------------------------------------------

TINY = dict(vocab_size=272, hidden_size=16, num_attention_heads=2, intermediate_size=24, moe_intermediate_size=12,
            shared_expert_intermediate_size=16, num_experts=4, num_local_experts=4, n_routed_experts=4)
LITTLE = dict(kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8, num_key_value_heads=2)
# name: (kind, changes of the configuration, how it is saved, what is done to the folder)
FIXTURES = {
    "mixtral": ("mixtral", dict(sliding_window=3), dict(BF16, shard="8KB"), None),
    "qwen2": ("qwen2", {}, {}, without_defaults),
    "qwen3": ("qwen3", dict(head_dim=8, tie_word_embeddings=True, num_key_value_heads=1), BF16, as_cache),
    "olmoe": ("olmoe", {}, BF16, as_version_4),
    "dsv2": ("dsv2", LITTLE, BF16, None),
    "dsv3": ("dsv3", dict(LITTLE, q_lora_rank=12, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0)),
             BF16, None),
    "kimi": ("dsv3", dict(LITTLE, q_lora_rank=12, n_group=1), BF16, as_kimi),
    "llama": ("llama", dict(attention_bias=True, num_key_value_heads=1), {}, None),
}


def write_fixtures():
    """Folders whose weights are multiples of 1/8, so that they compress, with the five largest
    logits of the prompt as transformers computes them in fp64."""
    for name, (kind, change, how, after) in FIXTURES.items():
        sizes = {k: v for k, v in TINY.items() if k in KIND[kind][1]}
        with tempfile.TemporaryDirectory() as base:
            folder = pathlib.Path(base) / "folder"
            save(folder, config_of(kind, **{**sizes, **change}), steps=8, vocab=272, **how)
            if after:
                after(folder)
            path = folder / "tokenizer.json"
            path = path if path.exists() else path.with_name("tiktoken.model")
            ids = Tokenizer.from_file(str(path)).encode(PROMPT).ids
            with torch.no_grad():
                top = load(folder, torch.float64)(input_ids=torch.tensor([ids])).logits[0, -1].topk(5)
            lines = [f"{i} {x:.6f}\n" for i, x in zip(top.indices.tolist(), top.values.tolist())]
            (pathlib.Path(base) / "logits").write_text("".join(lines))
            shutil.rmtree(f"{folder}-plain", ignore_errors=True)
            (HERE / "folders").mkdir(exist_ok=True)
            subprocess.run(["tar", "--sort=name", "--owner=0", "--group=0", "--mtime=@0", "-C", base, "-I", "gzip -9n",
                            "-cf", HERE / "folders" / f"{name}.tar.gz", "."], check=True)


# ---- one case ----------------------------------------------------------------------

class Wrong(Exception):
    pass


def pleat(*args, refused=None, cwd=None):
    r = subprocess.run([PLEAT, *map(str, args)], capture_output=True, text=True, errors="replace", cwd=cwd,
                       env=dict(os.environ, PLEAT_OPT="g"))
    if refused and r.returncode == 1 and refused in r.stderr and r.stderr.count("error:") == 1:
        return None
    if refused and r.returncode == 0:
        return r.stdout
    if refused or r.returncode:
        raise Wrong(f"{args[0]}: status {r.returncode}: {r.stderr.strip() or r.stdout[-200:]}")
    return r.stdout


def dtypes(folder):
    out = {}
    for path in pathlib.Path(folder).glob("*.safetensors"):
        with open(path, "rb") as f:
            head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        out |= {k: v["dtype"] for k, v in head.items() if k != "__metadata__"}
    return out


def class_of(config):
    kind = config["model_type"].replace("kimi_k2", "deepseek_v3")
    return transformers.AutoConfig.for_model(kind).__class__


def load(folder, dtype):
    """The model of transformers; Kimi's by the class of DeepSeek-V3."""
    plain = pathlib.Path(f"{folder}-plain")
    folder = plain if plain.exists() else folder
    said = json.loads((pathlib.Path(folder) / "config.json").read_text())
    config = class_of(said)(**{k: v for k, v in said.items() if k != "model_type"})
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    for what in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if info[what]:
            raise Wrong(f"transformers: {what}: {info[what]}")
    return model.eval()


def same_tensors(x, y, what):
    x, y = x.state_dict(), y.state_dict()
    if x.keys() != y.keys():
        raise Wrong(f"{what}: other tensors: {sorted(x.keys() ^ y.keys())[:3]}")
    for k in x:
        moved = (x[k] - y[k]).abs() if "e_score_correction_bias" in k else torch.ones(1)
        if ((moved == 0) | ((moved - 1e-3).abs() < 1e-6)).all():     # by the model's rule, at any rate
            continue
        if x[k].dtype != y[k].dtype or not torch.equal(x[k], y[k]):
            raise Wrong(f"{what}: {k} differs ({x[k].dtype}, {y[k].dtype})")


def check_logits(out, folder):
    path = pathlib.Path(folder) / "tokenizer.json"
    ids = Tokenizer.from_file(str(path if path.exists() else path.with_name("tiktoken.model"))).encode(PROMPT).ids
    with torch.no_grad():
        want = load(folder, torch.float64)(input_ids=torch.tensor([ids])).logits[0, -1]
    top = want.abs().max()
    for line in out.splitlines()[1:]:
        logit = float(line.rsplit("\"", 1)[1].split()[0])
        if abs(want[int(line.split()[0])] - logit) > 1e-4 * top:
            raise Wrong(f"logits: token {line.split()[0]} has {logit}, "
                        f"in transformers {want[int(line.split()[0])]:.6f}")


def check_config(folder, out):
    drop = ("num_nextn_predict_layers", "transformers_version", "_name_or_path", "dtype", "quantization_config", "torch_dtype")
    one, two = (json.loads((pathlib.Path(f) / "config.json").read_text()) for f in (folder, out))
    # Written always, as Hub folders have them; the layers that are there.
    more = ("head_dim", "scoring_func", "topk_method", "num_nextn_predict_layers")
    two = {k: v for k, v in two.items() if k not in more or one.get(k)}
    one, two = ({k: v for k, v in class_of(one)(**c).to_dict().items() if k not in drop} for c in (one, two))
    if one != two:
        raise Wrong(f"config: {[(k, one.get(k), two.get(k)) for k in one | two if one.get(k) != two.get(k)]}")


def one_case(name, base):
    kind, change, how, after, refused = CASES[name]
    folder, run = base / name / "folder", base / name
    run.mkdir()
    save(folder, config_of(kind, **change), **how)
    if after:
        after(folder)
    numpy.save(run / "tokens.npy", numpy.arange(2 * 17, dtype=numpy.int32) % VOCAB)
    args = ("from=folder", "target=host", "axes.seq=16")
    if pleat("import", "folder", "my.lua", refused=refused, cwd=run) is None:
        return "refused"
    if refused:
        raise Wrong(f"taken, but {refused} is not of this family's model")
    extra = () if (folder / "tokenizer.json").exists() else ("data.tokenizer=folder/tiktoken.model",)
    out = pleat("logits", "my.lua", *args, *extra, "precision=fp64", "--prompt", PROMPT, "--topk", 5, cwd=run)
    check_logits(out, folder)
    pleat("run", "my.lua", *args, "precision=fp32", "data.train=tokens.npy", "train.steps=1", "train.batch=2",
          "axes.batch=2", "train.lr=0", "train.min_lr=0", "train.weight_decay=0", "name=run", cwd=run)
    pleat("export", "run", "out", cwd=run)
    pleat("export", "run", "half", "bf16", cwd=run)
    same_tensors(load(folder, torch.float32), load(run / "out", torch.float32), "fp32")
    whole = load(folder, torch.bfloat16)
    same_tensors(whole, load(run / "half", torch.bfloat16), "bf16")
    whole.save_pretrained(run / "theirs")
    kept = {k for k, v in dtypes(run / "half").items() if v == "F32"}
    theirs = {k for k, v in dtypes(run / "theirs").items() if v == "F32"}
    theirs |= {k for k, v in dtypes(folder).items()
               if v == "F32" and len(set(dtypes(folder).values())) > 1 and not k.endswith("_scale_inv")}
    if kept != theirs:
        raise Wrong(f"bf16: fp32 are {sorted(kept ^ theirs)[:4]} of one side only")
    check_config(folder, run / "out")
    return "equal"


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--keep")
    args.add_argument("--fixtures", action="store_true")
    args.add_argument("name", nargs="*", default=list(CASES))
    args = args.parse_args()
    if args.fixtures:
        return write_fixtures()
    base = pathlib.Path(args.keep or tempfile.mkdtemp())
    count = {}
    for name in args.name or CASES:
        shutil.rmtree(base / name, ignore_errors=True)
        try:
            got, why = one_case(name, base), ""
        except (Wrong, OSError, ValueError, KeyError, RuntimeError) as e:
            got, why = "wrong", f": {e}".replace("\n", " ")
        count[got] = count.get(got, 0) + 1
        print(f"{name} {got}{why}", flush=True)
    print(", ".join(f"{n} {what}" for what, n in count.items()))
    if not args.keep:
        shutil.rmtree(base)
    return "wrong" in count


if __name__ == "__main__":
    raise SystemExit(main())
