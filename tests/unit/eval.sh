#!/bin/sh
# eval: perplexity and questions of multiple choice, against sums of what `logits`
# prints for each token's prefix; the windows of a long text; what is refused.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/eval
rm -rf "$dir" && mkdir -p "$dir" || exit 2
export XDG_CACHE_HOME="$dir/cache"
. tests/expect

keys="target=host precision=fp32 axes.hidden=16 axes.ffn=16 axes.dim=8 axes.kv=2 axes.batch=2"
# shellcheck disable=SC2086
is "a model of bytes" 0 "$PLEAT" run models/tiny.lua $keys axes.seq=8 train.batch=4 train.steps=8 train.warmup=0 \
    train.lr=0.02 data.train=LICENSE data.valid= name="$dir/run"

# chance TEXT N: -log of the probability of its last N bytes, the rest given
chance() {
    all=$1 k=${#1} sum=0
    while [ $k -gt $((${#all} - $2)) ]; do
        k=$((k - 1))
        next=$(printf %s "$all" | cut -c$((k + 1)))
        sum=$("$PLEAT" logits "$dir/run" --topk 256 --prompt "$(printf %s "$all" | cut -c1-$k)" |
            awk -v code="$(printf %d "'$next")" -v sum="$sum" 'NR > 1 { z[$1] = $(NF - 1) }
            END { for (t in z) all += exp(z[t]); printf "%.6f", sum + log(all) - z[code] }')
    done
    echo "$sum"
}

# A row has 8 inputs: the second window begins at the fourth byte.
printf 'the work and' >"$dir/text.txt"
is "perplexity" 0 "$PLEAT" eval "$dir/run" --perplexity "$dir/text.txt"
says "of eleven bytes, the first is given" "11 tokens, 11 bytes"
want=$(awk "BEGIN { printf \"%.4f\", ($(chance "the work " 8) + $(chance " work and" 3)) / 11 }")
is "is that of its windows" 0 awk -v want="$want" '/perplexity/ { sub(/.*loss /, ""); d = $1 - want; print $1, want
    exit !(d < 2e-4 && d > -2e-4) }' "$dir/said"

# Endings of other lengths: the likeliest one, and the likeliest one a character.
short=$(chance "on it a" 2) long=$(chance "on it and" 4)
question() { printf '{"ctx": "on it", "endings": ["and", "%s", "%s"], "label": %s}\n' "$1" "$2" "$3"; }
acc=$(awk "BEGIN { print ($short < $long) ? 1 : 0 }") norm=$(awk "BEGIN { print ($short < $long / 3) ? 1 : 0 }")
{ question a a 1; question a a 0; question a a 2; question a a 1; } >"$dir/q.jsonl"
is "multiple choice" 0 "$PLEAT" eval "$dir/run" --choices "$dir/q.jsonl"
expect() { awk -v a="$1" 'BEGIN { p = a ? 0.5 : 0.25; printf "%.4f +- %.4f", p, sqrt(p * (1 - p) / 3) }'; }
says "by the sum, the first of equals" ": acc $(expect "$acc"), acc_norm $(expect "$norm"), 4 questions"
is "the two differ here" 0 test "$acc" != "$norm"
printf '{"ctx": "here and there ", "endings": ["and", "a"], "label": "1"}\n' >"$dir/q.jsonl"
is "a context that is too long" 0 "$PLEAT" eval "$dir/run" --choices "$dir/q.jsonl"
says "loses its beginning" "1 questions"

# ---- what is refused -------------------------------------------------------------

refused() {
    printf '%s\n' '{"ctx": "a", "endings": ["b", "c"], "label": 1}' "$2" >"$dir/bad.jsonl"
    is "$1" 1 "$PLEAT" eval "$dir/run" --choices "$dir/bad.jsonl"
    says "says so" "bad.jsonl:2: error: $3"
}
refused "a label that no ending has" '{"ctx": "a", "endings": ["b", "c"], "label": 2}' 'has no "label" that is'
refused "no label, as in HellaSwag's test set" '{"ctx": "a", "endings": ["b", "c"], "label": ""}' 'has no "label" that is'
refused "one ending" '{"ctx": "a", "endings": ["b"], "label": 0}' 'has no "endings", two or more'
refused "no context" '{"endings": ["b", "c"], "label": 0}' 'has no "ctx" that is a text'
refused "no JSON" '{"ctx"' ""
printf '{"ctx": "a", "endings": ["b", "much too long"], "label": 1}\n' >"$dir/bad.jsonl"
is "an ending longer than a sequence" 1 "$PLEAT" eval "$dir/run" --choices "$dir/bad.jsonl"
says "says so" "14 tokens to predict, axes.seq is 8"
is "no file" 1 "$PLEAT" eval "$dir/run" --choices "$dir/none.jsonl"
is "an empty one" 1 sh -c ": >$dir/none.jsonl && $PLEAT eval $dir/run --choices $dir/none.jsonl"
says "says so" "has no questions"
is "a text of one byte" 1 sh -c "printf a >$dir/a.txt && $PLEAT eval $dir/run --perplexity $dir/a.txt"
says "has nothing to predict" "has no tokens to predict"
is "a model file needs weights" 1 "$PLEAT" eval models/tiny.lua --choices "$dir/q.jsonl"
says "says so" "from= says which weights"
printf '1..%d\n' $n
exit $bad
