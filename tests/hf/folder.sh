#!/bin/sh
# folder: a Hugging Face folder becomes a model file and a run, and the run such a
# folder, by the commands that a user types: the same weights and logits, the
# tokenizer, special tokens and config.json along; numbers that disagree are refused.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/folder
rm -rf "$dir" && mkdir -p "$dir" || exit 2
. tests/expect

host="target=host precision=fp32"

# What a family's published folder holds: weights, made here, and files beside them.
sed 's/eps = 48, 1e-6/eps = 2, 1e-6/' models/qwen3_moe.lua >"$dir/two.lua"
is "a run of Qwen's kind" 0 "$PLEAT" run "$dir/two.lua" $host name="$dir/first" train.steps=1 \
    train.batch=2 axes.batch=2 axes.seq=32 axes.hidden=16 axes.kv=2 axes.group=2 axes.dim=8 axes.ffn=8 \
    axes.expert=8 axes.vocab=1501 data.train=README.md data.tokenizer=tests/data/tokenizer/qwen2.json
is "goes out" 0 "$PLEAT" export "$dir/first" "$dir/hub" bf16
for text in '"eos_token_id"' '"num_hidden_layers": 2' '"torch_dtype": "bfloat16"'; do
    is "config.json has $text" 0 grep -F "$text" "$dir/hub/config.json"
done
is "its generation_config.json has the end of text" 0 grep -F '"eos_token_id"' "$dir/hub/generation_config.json"
is "its tokenizer_config.json has it" 0 grep -F '"eos_token": "<|endoftext|>"' "$dir/hub/tokenizer_config.json"
is "its tokenizer is the run's" 0 cmp tests/data/tokenizer/qwen2.json "$dir/hub/tokenizer.json"
is "a folder with files in it" 1 "$PLEAT" export "$dir/first" "$dir/hub"
says "is not written over" "holds files already"
echo '{"special": "kept"}' >"$dir/hub/special_tokens_map.json"

# In, trained for a step that changes nothing, and out.
is "import" 0 "$PLEAT" import "$dir/hub" "$dir/my.lua"
says "the model is said" "qwen3_moe"
is "import over a file" 1 "$PLEAT" import "$dir/hub" "$dir/my.lua"
says "says so" "my.lua is there already"
is "and nothing else" 0 sh -c "[ \$(wc -l <$dir/said) = 1 ]"
is "import of a text" 1 "$PLEAT" import README.md
says "says what it takes" "README.md is no folder; it reads one with config.json"
mkdir -p "$dir/cache/snapshots"
is "import of the Hub's cache" 1 "$PLEAT" import "$dir/cache" "$dir/cache.lua"
says "says where its folders are" "cache has no config.json (of the Hub's cache take a folder in snapshots)"
mkdir -p "$dir/cache/blobs" "$dir/cache/snapshots/main"
for file in "$dir"/hub/*; do
    cp "$file" "$dir/cache/blobs/$(basename "$file" | cksum | tr -d ' ')"
    ln -s "../../blobs/$(basename "$file" | cksum | tr -d ' ')" "$dir/cache/snapshots/main/$(basename "$file")"
done
for text in 'hidden=16' 'local layers, eps = 2, 1e-06' 'vocab=1501'; do
    is "the model has $text" 0 grep -F "$text" "$dir/my.lua"
done
tr -cd 'a-zA-Z. \n' <README.md | sed 's/.*/{"text": "&"}/' >"$dir/texts.jsonl"
is "a run from it, with its tokenizer" 0 "$PLEAT" run "$dir/my.lua" from="$dir/hub" $host \
    data.train="$dir/texts.jsonl" train.steps=1 train.lr=0 train.weight_decay=0 train.batch=2 axes.seq=16 name="$dir/run"
is "goes out as it came" 0 "$PLEAT" export "$dir/run" "$dir/out"
is "a run from the Hub's cache" 0 "$PLEAT" run "$dir/my.lua" from="$dir/cache/snapshots/main" $host \
    data.train="$dir/texts.jsonl" train.steps=1 train.lr=0 train.weight_decay=0 train.batch=2 axes.seq=16 name="$dir/linked"
is "goes out" 0 "$PLEAT" export "$dir/linked" "$dir/linked.out"
is "as files" 0 sh -c "diff -r $dir/out $dir/linked.out && [ -z \"\$(find $dir/linked.out -type l)\" ]"
is "with the same values" 0 "$PLEAT" ckpt diff "$dir/hub" "$dir/out"
for file in tokenizer.json tokenizer_config.json special_tokens_map.json generation_config.json; do
    is "$file goes along" 0 cmp "$dir/hub/$file" "$dir/out/$file"
done
is "config.json but for the dtype" 0 sh -c "sed s/bfloat16/float32/ $dir/hub/config.json | cmp - $dir/out/config.json"
for from in hub out; do
    is "logits of $from" 0 "$PLEAT" logits "$dir/my.lua" from="$dir/$from" $host axes.seq=16 --prompt 'set -e' --topk 5
    cp "$dir/log" "$dir/$from.logits"
done
is "logits of the run" 0 "$PLEAT" logits "$dir/run" --prompt 'set -e' --topk 5
cp "$dir/log" "$dir/run.logits"
is "are those of the folder" 0 cmp "$dir/hub.logits" "$dir/out.logits"
is "to the last digit" 0 cmp "$dir/hub.logits" "$dir/run.logits"
is "of five tokens" 0 sh -c "[ \$(grep -c '^ *[0-9]' $dir/run.logits) = 5 ]"
is "text of a folder" 0 "$PLEAT" generate "$dir/my.lua" from="$dir/hub" $host axes.seq=16 --prompt 'set' -n 3
is "a second run from the first" 0 "$PLEAT" run "$dir/my.lua" from="$dir/run" $host \
    data.train="$dir/texts.jsonl" train.steps=1 train.lr=0 train.weight_decay=0 train.batch=2 axes.seq=16 name="$dir/run2"
is "goes out with all of it too" 0 sh -c "$PLEAT export $dir/run2 $dir/out2 && cmp $dir/out/config.json $dir/out2/config.json &&
    cmp $dir/hub/special_tokens_map.json $dir/out2/special_tokens_map.json && cmp $dir/hub/tokenizer.json $dir/out2/tokenizer.json"

# Numbers that disagree, on either side.
refused() {
    what=$1 text=$2
    shift 2
    is "$what" 1 "$PLEAT" "$@" $host data.train="$dir/texts.jsonl" axes.seq=16 name="$dir/refused"
    says "says so" "$text"
}
sed 's/= 8, 1000000, nil/= 8, 10000, nil/' "$dir/my.lua" >"$dir/theta.lua"
refused "another theta" "config.json has rope_theta = 1000000.0, the model 10000" run "$dir/theta.lua" from="$dir/hub"
is "meant so" 0 "$PLEAT" run "$dir/theta.lua" from="$dir/hub" $host data.train="$dir/texts.jsonl" train.steps=1 \
    train.batch=2 axes.seq=16 hf.except=rope_theta name="$dir/meant"
is "goes out as it is" 0 sh -c "$PLEAT export $dir/meant $dir/meant.out && grep '\"rope_theta\": 10000.0,' $dir/meant.out/config.json"
sed 's/eps = 2, 1e-06/eps = 2, 1e-05/' "$dir/my.lua" >"$dir/eps.lua"
refused "another eps" "has rms_norm_eps = 1e-06, the model 1e-05" run "$dir/eps.lua" from="$dir/hub"

# folder CHANGE: the folder with its config.json so changed
folder() {
    rm -rf "$dir/other" && cp -r "$dir/hub" "$dir/other" && sed "$1" "$dir/hub/config.json" >"$dir/other/config.json"
}
folder 's/"attention_bias": false/"attention_bias": true/'
is "biases, which the model has not" 1 "$PLEAT" import "$dir/other" "$dir/other.lua"
says "says so" "has attention_bias = true, the model false"
is "writes nothing" 1 test -e "$dir/other.lua"
folder 's/"rope_theta"/"rope_scaling": {"rope_type": "dynamic", "factor": 8}, &/'
is "positions stretched in another way" 1 "$PLEAT" import "$dir/other" "$dir/other.lua"
says "says so" "has rope_scaling of type 'dynamic'; known are linear, llama3, yarn"
folder 's/qwen3_moe/qwen4_moe/'
is "another family" 1 "$PLEAT" import "$dir/other" "$dir/other.lua"
says "lists those that are known" "known are mixtral, qwen2_moe"
folder '/"hidden_size"/d'
is "a key is absent" 0 "$PLEAT" import "$dir/other" "$dir/other.lua"
says "is named" "have the values of transformers for qwen3_moe: hidden_size"
is "it has the default of transformers" 0 grep -F 'hidden=2048' "$dir/other.lua"
rm -f "$dir/other.lua"
folder 's/"model_type": "qwen3_moe"/"model_type": "vl", "text_config": {}/'
is "a wrapper of a text model" 1 "$PLEAT" import "$dir/other" "$dir/other.lua"
says "says how to take it out" "its text model in text_config"
folder 's/"model_type"/"quantization_config": {"quant_method": "awq"}, &/'
is "weights of another quantization" 1 "$PLEAT" import "$dir/other" "$dir/other.lua"
says "names it" 'quantization_config of kind "awq"'
folder 's/"model_type"/"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 128]}, &/'
is "scales of other blocks" 1 "$PLEAT" import "$dir/other" "$dir/other.lua"
says "are named" "weight_block_size [64, 128]; fp8 in blocks [128, 128] is read"
is "by a run too" 1 "$PLEAT" logits "$dir/my.lua" from="$dir/other" $host axes.seq=16 --prompt a
says "are named" "weight_block_size [64, 128]"
folder 's/"model_type"/"router_aux_loss_coef": 0.02, &/'
is "another weight of the balance" 0 "$PLEAT" import "$dir/other" "$dir/other.lua"
says "is named" "0.02 in router_aux_loss_coef"
rm -f "$dir/other.lua"
folder 's/"model_type"/"router_aux_loss_coef": 0.001, &/'
is "the same weight" 0 "$PLEAT" import "$dir/other" "$dir/other.lua"
says "is imported" "next: pleat run"
is "and not named" 1 grep warning "$dir/said"
rm -f "$dir/other.lua"
folder 's/"model_type"/"router_jitter_noise": 0.1, &/'
is "a setting of training" 0 "$PLEAT" import "$dir/other" "$dir/other.lua"
says "is named" "router_jitter_noise=0.1, which is not taken over"

mv "$dir/other/tokenizer.json" "$dir/other/tokenizer.model"
is "a tokenizer of another kind" 1 "$PLEAT" logits "$dir/other.lua" from="$dir/other" --prompt a
says "is not taken for bytes" "has no tokenizer.json"
mv "$dir/other/tokenizer.model" "$dir/other/tokenizer.json"

# Weights in another form, or in two.
mv "$dir/other/model.safetensors" "$dir/other/pytorch_model.bin"
is "weights of torch.save" 1 "$PLEAT" logits "$dir/other.lua" from="$dir/other" --prompt a
says "says how to convert them" "but pytorch_model.bin"
echo '{"weight_map": {"lm_head.weight": "model-1.safetensors"}}' >"$dir/other/model.safetensors.index.json"
is "an absent shard" 1 "$PLEAT" logits "$dir/other.lua" from="$dir/other" --prompt a
says "is named" "model-1.safetensors, which it names, is not there"
cp "$dir/hub/model.safetensors" "$dir/other"
cp "$dir/hub/model.safetensors" "$dir/other/model-1.safetensors"
is "two sets of weights" 1 "$PLEAT" logits "$dir/other.lua" from="$dir/other" --prompt a
says "are refused" "two sets of weights"
rm -f "$dir/other.lua" "$dir/other/model"*
folder '3s/$/,,/'
is "no JSON" 1 "$PLEAT" import "$dir/other" "$dir/other.lua"
says "its line" "other/config.json:3: error: "
is "no folder" 1 "$PLEAT" import "$dir/none"
says "says how to get one" "hf download"
# A tied embedding, and a padding token, whose row gets no gradient: a step on nothing else
# changes no embedding; without the key it does.
sed 's/tied, pad = false, -1/tied, pad = true, 97/' "$dir/two.lua" >"$dir/tied.lua"
sizes="train.steps=1 train.batch=2 axes.batch=2 axes.seq=8 train.lr=0.1 train.min_lr=0 train.warmup=0 train.weight_decay=0"
is "a tied run" 0 "$PLEAT" run "$dir/tied.lua" $host name="$dir/tied" $sizes axes.hidden=16 axes.kv=2 axes.group=2 \
    axes.dim=8 axes.ffn=8 axes.expert=8 axes.vocab=256 data.train=README.md
is "goes out" 0 "$PLEAT" export "$dir/tied" "$dir/tied.hub"
for text in '"tie_word_embeddings": true' '"pad_token_id": 97'; do
    is "its config.json has $text" 0 grep -F "$text" "$dir/tied.hub/config.json"
done
is "it comes in" 0 "$PLEAT" import "$dir/tied.hub" "$dir/tied2.lua"
is "with both" 0 grep -F 'local tied, pad = true, 97' "$dir/tied2.lua"
yes a | tr -d '\n' | head -c 400 >"$dir/a.txt"
for pad in 97 -1; do
    sed "s/tied, pad = false, -1/tied, pad = false, $pad/" "$dir/two.lua" >"$dir/pad.lua"
    for lr in 0 0.1; do
        is "a run, pad $pad, rate $lr" 0 "$PLEAT" run "$dir/pad.lua" $host name="$dir/pad$pad.$lr" $sizes axes.hidden=16 \
            axes.kv=2 axes.group=2 axes.dim=8 axes.ffn=8 axes.expert=8 axes.vocab=256 data.train="$dir/a.txt" train.lr=$lr
        is "goes out" 0 "$PLEAT" export "$dir/pad$pad.$lr" "$dir/pad$pad.$lr.hub"
    done
    "$PLEAT" ckpt diff "$dir/pad$pad.0.hub" "$dir/pad$pad.0.1.hub" >"$dir/pad$pad.diff"
done
is "without padding the embedding learns" 0 grep embed_tokens "$dir/pad-1.diff"
is "the head learns" 0 grep lm_head "$dir/pad97.diff"
is "the padding row does not" 1 grep embed_tokens "$dir/pad97.diff"

# What an export needs is read before the run, and before the export writes.
echo '{"model": {"type": "Unigram"}}' >"$dir/unigram.json"
is "tokens, with a tokenizer that is not known" 1 "$PLEAT" run "$dir/two.lua" $host name="$dir/unknown" $sizes axes.hidden=16 \
    axes.kv=2 axes.group=2 axes.dim=8 axes.ffn=8 axes.expert=8 axes.vocab=256 data.train=tests/hf/tokens.npy \
    data.tokenizer="$dir/unigram.json"
says "the run says so" "model 'Unigram' is not known"
cp "$dir/unigram.json" "$dir/first/tokenizer.json"
is "its export" 1 "$PLEAT" export "$dir/first" "$dir/unknown.out"
says "says so" "model 'Unigram' is not known"
is "leaves nothing" 0 sh -c "! ls -A $dir | grep unknown.out"
cp "$dir/unigram.json" "$dir/hub/tokenizer.json"
is "the folder's own" 0 "$PLEAT" run "$dir/my.lua" from="$dir/hub" $host data.train=tests/hf/tokens.npy train.steps=1 \
    train.batch=2 axes.seq=32 data.tokenizer=bytes name="$dir/own"
is "goes along" 0 sh -c "$PLEAT export $dir/own $dir/own.out && cmp $dir/unigram.json $dir/own.out/tokenizer.json"
sed '/^hf {/,/^}/d' "$dir/my.lua" >"$dir/bare.lua"
is "a model without hf{}" 0 "$PLEAT" run "$dir/bare.lua" $host data.train=tests/hf/tokens.npy train.steps=1 \
    train.batch=2 axes.seq=32 name="$dir/bare"
is "has no export" 1 "$PLEAT" export "$dir/bare" "$dir/bare.out"
says "says what it lacks" "has no hf{} table, which names its parameters"

rm "$dir/hub/tokenizer.json"
refused "texts without a tokenizer" "has no tokenizer.json" run "$dir/my.lua" from="$dir/hub"
printf '1..%d\n' $n
exit $bad
