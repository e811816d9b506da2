#!/bin/sh
# adapters: those of lora() as PEFT names them: in from its folder (hf_test compares the
# numbers with PEFT), out alone, added to their weights; what is refused.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/adapters
rm -rf "$dir" && mkdir -p "$dir/base" "$dir/hub" || exit 2
. tests/expect
cp tests/hf/qwen3.safetensors "$dir/base/model.safetensors"
cp tests/hf/qwen3-lora.safetensors "$dir/hub/model.safetensors" # base and adapters
echo '{"model_type": "a test"}' | tee "$dir/base/config.json" >"$dir/hub/config.json"

# run NAME MODEL key=value ..: a step in fp64; loss NAME: its loss
run() {
    run_name=$1 run_model=$2
    shift 2
    "$PLEAT" run "tests/hf/$run_model.lua" target=host world=1 precision=fp64 train.steps=1 name="$dir/$run_name" "$@"
}
loss() { sed -n 's/.*"loss": \([0-9.]*\).*/\1/p' "$dir/$1/metrics.jsonl" | head -1; }

is "weights and adapters in one file" 0 run both qwen3-lora from="$dir/hub" train.lr=0
is "adapters out alone" 0 "$PLEAT" export "$dir/both" "$dir/A" adapters
is "their config" 0 grep -q '"lora_alpha": 10' "$dir/A/adapter_config.json"
is "no other tensors" 1 grep -q 'q_proj.weight' "$dir/A/adapter_model.safetensors"
is "weights, then adapters" 0 run apart qwen3-lora from="$dir/base" adapter="$dir/A"
is "the same loss" 0 test "$(loss both)" = "$(loss apart)" -a "$(loss both)" != ""
is "added to their weights" 0 "$PLEAT" export "$dir/both" "$dir/merged"
is "a model without adapters" 0 run merged qwen3 from="$dir/merged"
is "has their loss" 0 test "$(loss both)" = "$(loss merged)"
is "new adapters add nothing" 0 run new qwen3-lora from="$dir/base" "new=*.lora_*"
is "a model of the weights alone" 0 run alone qwen3 from="$dir/base"
is "has the same loss" 0 test "$(loss new)" = "$(loss alone)" -a "$(loss new)" != "$(loss both)"

is "no adapters, no new" 1 run r1 qwen3-lora from="$dir/base"
is "adapters without weights" 1 run r2 qwen3-lora adapter="$dir/A"
is "adapters that the model has not" 1 run r3 qwen3 from="$dir/base" adapter="$dir/A"
refused() {
    mkdir -p "$dir/B" && cp "$dir/A/adapter_model.safetensors" "$dir/B"
    sed "$2" "$dir/A/adapter_config.json" >"$dir/B/adapter_config.json"
    is "$1" 1 run r4 qwen3-lora from="$dir/base" adapter="$dir/B"
    says "$1, and why" "$3"
}
refused "another alpha" 's/"lora_alpha": 10/"lora_alpha": 12/' "lora_alpha = 12, the lora() of the model 10"
refused "another rank" 's/"r": 4/"r": 8/' "r = 8, the lora() of the model 4"
refused "DoRA" 's/"r": 4/"r": 4, "use_dora": true/' "use_dora, which is not read"
refused "not LoRA" 's/LORA/LOHA/' "is not of LoRA"
sed 's/rank=4/rank=8/' tests/hf/qwen3-lora.lua >"$dir/wide.lua"
is "adapters of another size" 1 "$PLEAT" run "$dir/wide.lua" from="$dir/base" adapter="$dir/A" target=host world=1 data.train=tests/hf/tokens.npy
printf "1..%d\n" $n
exit $bad
