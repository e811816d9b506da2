#!/bin/sh
# names: a run reads the data of a model whose axes have names of their own as it
# reads that of the same model with the usual ones: losses are equal to the last
# digit, and what it samples.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
awk 'BEGIN { for (i = 0; i < 3000; i++) printf "%c%s", 97 + i % 7, i % 5 ? "" : "\n" }' >"$dir/text"

# model BATCH SEQ VOCAB: with these names of axes
model() {
    cat <<END
axes { $1=4, $2=16, hidden=32, $3=256, inner=64 }
local tokens, labels = input("tokens", "$1 $2"), input("labels", "$1 $2")
local x = embed(tokens, param("embed", "$3 hidden"))
x = x + dot(gelu(dot(x, param("up", "hidden inner"), "hidden")), param("down", "inner hidden"), "inner")
local logits = dot(x, param("head", "hidden $3"), "hidden")
loss("lm", mean(cross_entropy(f32(logits), labels, "$3"), "$1 $2"))
output("logits", logits)
END
}
run() {
    model "$2" "$3" "$4" >"$dir/$1.lua"
    "$PLEAT" run "$dir/$1.lua" name="$dir/$1" data.train="$dir/text" data.valid=tail:0.1 train.batch=8 \
        train.steps=4 train.sample_every=4 >"$dir/$1.out" 2>&1 || cat "$dir/$1.out"
    grep -o '"loss": [^,]*\|"val_loss": [^,]*' "$dir/$1/metrics.jsonl" >"$dir/$1.got"
    sed -n 's/^val loss/&/p; /^step  *[0-9]*: /p' "$dir/$1.out" >>"$dir/$1.got"
}
run usual batch seq vocab
run other sentence place letter
if [ "$(grep -c loss "$dir/usual.got")" -ge 5 ] && cmp -s "$dir/usual.got" "$dir/other.got"
then echo "ok - names: data by the roles of axes"
else
    echo "not ok - names: data by the roles of axes"
    diff "$dir/usual.got" "$dir/other.got" | sed 's/^/# /'
    head -n 3 "$dir/other.out" | sed 's/^/# /'
fi
