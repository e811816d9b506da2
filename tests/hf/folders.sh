#!/bin/sh
# folders: folders that save_pretrained wrote (folders.py --fixtures): bf16, shards, a tied
# embedding, links of the Hub's cache, keys of transformers 4, FP8 of Kimi K2's kind. Each is
# imported, its logits are those of transformers, and it comes out with the same bytes.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/folders
rm -rf "$dir" && mkdir -p "$dir" || exit 2
. tests/expect

# tensors FOLDER: a line for each: its name, dtype, shape
tensors() {
    for file in "$1"/*.safetensors; do head -c 60000 "$file" | grep -ao '"[^"]*":{"dtype":"[^]]*]'; done | sort
}
# near FILE FILE: lines of a number and a logit, which differ by less than 2e-6
near() {
    paste -d' ' "$1" "$2" | awk '{ d = $2 - $4 } $1 != $3 || d * d > 4e-12 || NF != 4 { bad = 1 }
        END { exit bad || NR != 5 }'
}
# logits NAME FOLDER: Pleat's five largest, as the fixture has them
logits() {
    is "$kind, $1" 0 "$PLEAT" logits "$d/my.lua" from="$2" target=host precision=fp64 axes.seq=16 \
        data.tokenizer="$tokenizer" --prompt 'set -e' --topk 5
    awk 'NR > 1 { print $1, $(NF - 1) }' "$dir/log" >"$d/got"
    is "are those of transformers" 0 near "$d/logits" "$d/got"
}

for file in tests/hf/folders/*.tar.gz; do
    kind=$(basename "$file" .tar.gz)
    d=$dir/$kind
    mkdir -p "$d/run" && tar xzf "$file" -C "$d"
    tokenizer=$d/folder/tokenizer.json
    [ -e "$tokenizer" ] || tokenizer=$d/folder/tiktoken.model
    is "$kind, import" 0 "$PLEAT" import "$d/folder" "$d/my.lua"
    logits "logits" "$d/folder"
    is "$kind, a plan" 0 "$PLEAT" compile "$d/my.lua" target=host precision=fp32 world=1 -o "$d/run/plan"
    is "$kind, weights in" 0 "$PLEAT" ckpt import-hf "$d/folder" "$d/run"
    is "$kind, out" 0 "$PLEAT" export "$d/run" "$d/out"
    logits "logits of what came out" "$d/out"
    is "$kind, out as bf16" 0 "$PLEAT" export "$d/run" "$d/half" bf16
    is "$kind, config.json is read alike" 0 "$PLEAT" import "$d/out" "$d/again.lua"
    is "$kind, the same model" 0 sh -c "sed 1,2d $d/my.lua >$d/one; sed 1,2d $d/again.lua | cmp - $d/one"
    is "$kind, the tokenizer" 0 cmp "$tokenizer" "$d/out/$(basename "$tokenizer")"
    [ "$kind" != kimi ] || continue
    is "$kind, the same values" 0 "$PLEAT" ckpt diff "$d/folder" "$d/out"
    tensors "$d/folder" >"$d/one" && tensors "$d/out" >"$d/two"
    is "$kind, names, dtypes and shapes" 0 cmp "$d/one" "$d/two"
    is "$kind, there are some" 0 [ -s "$d/one" ]
    tensors "$d/half" >"$d/two"
    grep -q F32 "$d/one" && ! grep -q BF16 "$d/one" ||
        is "$kind, as bf16 the same" 0 cmp "$d/one" "$d/two"
done
# The greedy choice of DeepSeek-V2 has no groups; a folder of the Hub's cache is its snapshot.
kind=dsv2 d=$dir/dsv2 tokenizer=$dir/dsv2/hub/snapshots/3f/tokenizer.json
mkdir -p "$d/hub/refs" "$d/hub/snapshots" && mv "$d/folder" "$d/hub/snapshots/3f" && echo 3f >"$d/hub/refs/main"
sed -i 's/"\(n_group\|topk_group\)": *[0-9]*/"\1": 2/; s/"topk_group": 2/"topk_group": 1/' "$d/hub/snapshots/3f/config.json"
rm "$d/my.lua"
is "$kind, import by the cache" 0 "$PLEAT" import "$d/hub" "$d/my.lua"
is "$kind, in groups" 0 grep -q "nodes=2" "$d/my.lua"
logits "logits by the cache" "$d/hub"
printf '1..%d\n' $n
exit $bad
