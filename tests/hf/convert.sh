#!/bin/sh
# convert: weights from Hugging Face folders and back, file to file: the same bytes
# for both spellings of experts, in one file and in many; other dtypes; FP8 with
# scales; a run that goes on from step 0; folders that are refused. logits.py shows
# that transformers reads what is written here.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/convert
rm -rf "$dir" && mkdir -p "$dir" || exit 2
cases="mixtral mixtral-aux qwen2 qwen3 olmoe dsv2 dsv3 dsv3-mtp"
. tests/expect

# plan CASE FOLDER: a run's folder with nothing but a plan
plan() {
    mkdir -p "$2" && "$PLEAT" compile "tests/hf/$1.lua" precision=fp32 world=1 -o "$2/plan" >/dev/null
}

for c in $cases; do
    d=$dir/$c
    plan "$c" "$d/a" && mkdir -p "$d/b" "$d/hf" && cp "$d/a/plan" "$d/b/plan"
    cp "tests/hf/$c.safetensors" "$d/hf/model.safetensors"
    echo '{"model_type": "a test"}' >"$d/hf/config.json"
    is "$c in" 0 "$PLEAT" ckpt import-hf "$d/hf" "$d/a"
    is "$c is whole" 0 "$PLEAT" ckpt verify "$d/a"
    is "$c out" 0 "$PLEAT" ckpt export-hf "$d/a" "$d/out"
    is "$c, the same values" 0 "$PLEAT" ckpt diff "$d/hf" "$d/out"
    is "$c, config.json goes along" 0 grep -q '"model_type": "a test"' "$d/out/config.json"
    is "$c out, fused, in many files" 0 "$PLEAT" ckpt export-hf "$d/a" "$d/fused" fused 150KB
    is "$c in again" 0 "$PLEAT" ckpt import-hf "$d/fused" "$d/b"
    is "$c, the same bytes" 0 cmp "$d/a/ckpt/step-00000000/model.safetensors" \
        "$d/b/ckpt/step-00000000/model.safetensors"
done

# bf16 is kept as such: what is rounded once is the same for ever.
d=$dir/qwen3
mkdir -p "$d/c" && cp "$d/a/plan" "$d/c/plan"
is "out as bf16" 0 "$PLEAT" ckpt export-hf "$d/a" "$d/bf16" bf16
is "values differ" 1 "$PLEAT" ckpt diff "$d/bf16" "$d/hf"
is "in as bf16" 0 "$PLEAT" ckpt import-hf "$d/bf16" "$d/c"
is "out again" 0 "$PLEAT" ckpt export-hf "$d/c" "$d/bf16.2"
is "bf16, the same bytes" 0 cmp "$d/bf16/model.safetensors" "$d/bf16.2/model.safetensors"

# A router stays in fp32, as transformers keeps DeepSeek's; so does what a folder had in fp32
# beside narrower tensors.
float32() {
    is "$1" 0 sh -c "head -c 20000 $2/model.safetensors | grep -ao '\"[^\"]*\":{\"dtype\":\"F32\"' |
        tr -d '{\"' | sed 's/:.*//' | sort | tr '\n' ' ' | grep -x '$3'"
}
d=$dir/dsv3
gate='model.layers.1.mlp.gate.e_score_correction_bias model.layers.1.mlp.gate.weight '
mkdir -p "$d/v3" "$d/c" "$d/e" && cp "$d/hf/model.safetensors" "$d/v3" && cp "$d/a/plan" "$d/c/plan" && cp "$d/a/plan" "$d/e/plan"
echo '{"model_type": "deepseek_v3"}' >"$d/v3/config.json"
is "a DeepSeek-V3 in" 0 "$PLEAT" ckpt import-hf "$d/v3" "$d/c"
is "out as bf16" 0 "$PLEAT" ckpt export-hf "$d/c" "$d/bf16" bf16
float32 "its router is fp32" "$d/bf16" "$gate"
is "its config.json says bf16" 0 grep -F '"torch_dtype": "bfloat16"' "$d/bf16/config.json"
echo '{"model_type": "a test"}' >"$d/bf16/config.json"
is "in by another name" 0 "$PLEAT" ckpt import-hf "$d/bf16" "$d/e"
is "out as it was" 0 "$PLEAT" ckpt export-hf "$d/e" "$d/bf16.2"
is "config.json has the dtype of most" 0 grep -F '"torch_dtype": "bfloat16"' "$d/bf16.2/config.json"
is "out as bf16" 0 "$PLEAT" ckpt export-hf "$d/e" "$d/bf16.3" bf16
float32 "its router is fp32 still" "$d/bf16.3" "$gate"
echo model.embed_tokens.weight >"$d/c/hf/float32"
is "out as bf16, but for the embedding" 0 "$PLEAT" ckpt export-hf "$d/c" "$d/bf16.4" bf16
float32 "which is fp32" "$d/bf16.4" "model.embed_tokens.weight $gate"
mkdir -p "$d/f" && cp "$d/a/plan" "$d/f/plan"
is "in" 0 "$PLEAT" ckpt import-hf "$d/bf16.4" "$d/f"
is "out as it was" 0 "$PLEAT" ckpt export-hf "$d/f" "$d/bf16.5"
is "its first tensor is not the dtype" 0 grep -F '"torch_dtype": "bfloat16"' "$d/bf16.5/config.json"
is "out as fp16, the first folder" 0 "$PLEAT" ckpt export-hf "$d/a" "$d/fp16" fp16
float32 "all of it was fp32" "$d/fp16" 'model.layers.1.mlp.gate.e_score_correction_bias '

plan fp8 "$dir/fp8"
is "FP8 in" 0 "$PLEAT" ckpt import-hf tests/hf/fp8.safetensors "$dir/fp8"
is "FP8 out" 0 "$PLEAT" ckpt export-hf "$dir/fp8" "$dir/fp8/out" fp32
is "FP8, element times scale" 0 "$PLEAT" ckpt diff tests/hf/fp8.ref.safetensors "$dir/fp8/out"

# ... and loaded by a run, which a step without a rate leaves as it is.
printf '\001\002\003\004\005\006\007\010%s' "" "" "" "" >"$dir/bytes.txt"
is "FP8 from" 0 "$PLEAT" run tests/hf/fp8.lua from=tests/hf/fp8.safetensors precision=fp32 target=host \
    world=1 name="$dir/fp8.run" data.train="$dir/bytes.txt" train.steps=1 train.lr=0 train.weight_decay=0
is "FP8 from and out" 0 "$PLEAT" ckpt export-hf "$dir/fp8.run" "$dir/fp8.run/out"
is "FP8 from, element times scale" 0 "$PLEAT" ckpt diff tests/hf/fp8.ref.safetensors "$dir/fp8.run/out"

# The first loss of a run from there is the reference's.
d=$dir/olmoe
is "a run goes on" 0 "$PLEAT" run tests/hf/olmoe.lua precision=fp32 target=host name="$d/b" \
    resume=1 train.steps=1
want=$(sed -n '/^  "loss": \[/{n;s/[ ,]//gp;}' tests/hf/olmoe.json)
is "its first loss is $want" 0 sh -c "sed -n 's/.*\"loss\": \([0-9.]*\),.*/\1/p' $d/b/metrics.jsonl |
    awk -v want=$want '{ d = \$1 / want - 1 } END { exit !(NR && d * d < 5e-7 * 5e-7) }'"
is "no import over checkpoints" 1 "$PLEAT" ckpt import-hf "$d/hf" "$d/a"
says "it says so" "has checkpoints already"
mkdir -p "$d/own" && cp "$d/a/plan" "$d/own" && cp -r "$d/hf" "$d/own/hf"
is "no import over a folder hf" 1 "$PLEAT" ckpt import-hf "$d/own/hf" "$d/own"
says "it says so" "own/hf is there already"
is "the weights there stay" 0 diff -r "$d/hf" "$d/own/hf"

# Layers that predict further tokens: left out by a model without, asked for by one with.
d=$dir/ahead
mkdir -p "$d/none" "$d/two"
sed 's/^local mtp, mtp_weight = 2/local mtp, mtp_weight = 0/' tests/hf/dsv3-mtp.lua >"$d/none.lua"
is "a model without MTP" 0 "$PLEAT" compile "$d/none.lua" precision=fp32 world=1 -o "$d/none/plan" \
    data.train=tests/hf/tokens.npy
is "a folder with it" 0 "$PLEAT" ckpt import-hf "$dir/dsv3-mtp/hf" "$d/none"
says "what is left out" "tensors of layers from 2 on, which predict a token further (MTP), are ignored"
is "no more than one line" 0 sh -c "[ \$(wc -l <$d/../said) -eq 1 ]"
is "it goes out" 0 "$PLEAT" ckpt export-hf "$d/none" "$d/without"
cp "$dir/dsv3-mtp/a/plan" "$d/two/plan"
is "a model with MTP, a folder without" 1 "$PLEAT" ckpt import-hf "$d/without" "$d/two"
says "it says so" "without has no layer 2, which the model has"

# A model of ours, nobody's weights: its hf{} makes the config.json.
d=$dir/scratch
is "a run from scratch" 0 "$PLEAT" run models/olmoe.lua target=host precision=fp32 world=1 \
    name="$d" train.steps=1 train.batch=2 axes.batch=2 axes.seq=32 data.train=tests/hf/tokens.npy \
    axes.hidden=8 axes.heads=2 axes.dim=4 axes.ffn=12 axes.expert=8 axes.vocab=256
is "it goes out" 0 "$PLEAT" ckpt export-hf "$d" "$d/out" bf16
for line in '"model_type": "olmoe"' '"hidden_size": 8' '"num_hidden_layers": 16' \
    '"num_experts": 8' '"norm_topk_prob": false' '"torch_dtype": "bfloat16"'; do
    is "its config.json has $line" 0 grep -F "$line" "$d/out/config.json"
done
is "a config that disagrees" 1 "$PLEAT" check models/olmoe.lua 'hf.config={"num_experts": 3}'
says "it says where" "config has num_experts = 3, but 'model.layers.0.mlp.gate.weight' has 64 there"

plan mixtral "$dir/other"
is "other tensors" 1 "$PLEAT" ckpt import-hf "$dir/qwen3/hf" "$dir/other"
says "the first one that does not fit" "parameter '"
is "a model without them" 1 "$PLEAT" ckpt export-hf "$dir/qwen3/a" "$dir/none" 5parsecs
says "a size that is none" "what is '5parsecs'?"
printf '1..%d\n' $n
exit $bad
