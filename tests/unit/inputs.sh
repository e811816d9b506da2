#!/bin/sh
# inputs: arrays for inputs of any axes, with the losses of one rank in a fold; the
# data that an input takes, and what is refused.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/inputs
rm -rf "$dir" && mkdir -p "$dir/set" || exit 2
. tests/expect

# array FILE TYPE SHAPE: its elements are the bytes on standard input
array() {
    { printf "\223NUMPY\1\0v\0%-117s\n" "{'descr': '$2', 'fortran_order': False, 'shape': ($3), }"
      cat; } >"$1"
}
# run NAME MODEL DATA key=value...
run() {
    file=$dir/$2.lua data=$3 out=$1
    shift 3
    "$PLEAT" run "$file" name="$dir/$out" data.train="$data" train.batch=4 train.steps=2 "$@"
}
losses() { grep -o '"loss": [^,]*' "$dir/$1/metrics.jsonl"; }
bytes() { awk -v n="$1" -v m="$2" 'BEGIN { for (i = 0; i < n; i++) printf "\\%03o", i % m }'; }

# ---- a number a sequence, pictures, pipelines ----------------------------------

printf "$(bytes 64 50)" | array "$dir/set/tokens.npy" "|u1" "8, 8"
printf "$(bytes 64 60)" | array "$dir/set/labels.npy" "|u1" "8, 8"
printf "$(bytes 192 90)" | array "$dir/set/pictures.npy" "|u1" "8, 4, 6"
printf "$(bytes 8 8)" | array "$dir/set/reward.npy" "|u1" "8,"
cat >"$dir/m.lua" <<'END'
axes { batch=2, pair=1, both=2, seq=8, hidden=16, patch=4, pixel=6, vocab=64 }
local v = dot(input("pictures", "batch patch pixel", "real"), param("see", "pixel hidden"), "pixel")
local x = embed(input("tokens", "batch seq"), param("embed", "vocab hidden")) + mean(v, "patch")
for i = 0, 1 do x = scope("layers." .. i, function() return x + silu(x * param("w", "hidden")) end) end
local reward, labels = input("reward", "batch", "real"), input("labels", "batch seq")
local lm = mean(cross_entropy(dot(x, param("head", "hidden vocab"), "hidden"), labels, "vocab"), "seq")
loss("lm", mean(reward * lm, "batch"))
metric("reward", mean(reward, "batch"))
metric("pairs", mean(sum(split(reward, "batch", "pair both"), "both"), "pair"))
END
is "a number for each sequence" 0 run one m "$dir/set"
is "is of its row" 0 grep -q '"reward": 1.5' "$dir/one/metrics.jsonl"
is "metrics of pairs of sequences" 0 grep -q '"pairs": 3[,}]' "$dir/one/metrics.jsonl"
for fold in pp=2 dp=2; do
    is "fold.$fold" 0 run two m "$dir/set" fold.$fold
    is "has the losses of one rank" 0 sh -c "[ '$(losses one)' = '$(losses two)' ]"
    rm -rf "$dir/two"
done
printf "$(bytes 8 8)" | array "$dir/set/pictures.npy" "|u1" "8,"
is "a number for a picture" 1 run no m "$dir/set"
says "is refused" "a row of $dir/set/pictures.npy has 1 elements, input 'pictures' needs 24"
is "tokens for pictures" 1 run no m "$dir/set/labels.npy"
says "are refused" "m.lua:2: error: data.train: $dir/set/labels.npy holds tokens; input 'pictures' needs a folder with an array for each input: "

# ---- integers against the axis that they index -----------------------------------

# ids NAME STATUS IDS TEXT: rows IDS of a table with 7 rows, or the loss TEXT
ids() {
    cat >"$dir/ids.lua" <<END
axes { batch=2, seq=8, hidden=4, patch=4, pixel=6, class=7, vocab=60 }
local tokens, labels, reward = input("tokens", "batch seq"), input("labels", "batch seq"), input("reward", "batch", "i32")
local table = param("table", "class hidden")
local function ce(t) return cross_entropy(dot(embed(tokens, param("w", "vocab hidden")), table, "hidden"), t, "class") end
loss("l", mean($3, "batch seq"))
END
    rm -rf "$dir/i"
    is "$1" "$2" run i ids "$dir/set" fold.dp=2
    [ -z "$4" ] || says "is refused" "$4"
}
beyond="error: an index into axis 'class' is"
ids "tokens by their remainder" 0 'sum(embed(mod(tokens, 7), table), "hidden")'
ids "tokens below another" 0 'sum(embed(where(lt(tokens, 7), tokens, 0), table), "hidden")'
ids "the least of tokens and a constant" 0 'sum(embed(minimum(tokens * 3, 6), table), "hidden")'
ids "tokens less a constant" 1 'sum(embed(tokens - 43, table), "hidden")' "ids.lua:5: $beyond -43, beyond its end"
ids "labels of some classes" 0 'ce(where(lt(labels, 7), labels, -1))'
ids "a token plus a constant" 1 'sum(embed(tokens + 1, table), "hidden")' \
    "data.train: token 6 at 6 of $dir/set/tokens.npy is beyond the vocabulary of 6"
ids "an index other than tokens" 1 'sum(embed(reward, table), "hidden") + 0 * f32(tokens)' \
    "data.train: index 7 at 7 of $dir/set/reward.npy is beyond the axis of 7"
ids "a one-hot" 1 'sum(dot(f32(one_hot(tokens, "class")), table, "class"), "hidden")' "beyond the vocabulary of 7"
ids "labels of more classes" 1 'ce(labels)' "labels.npy is beyond the vocabulary of 7"
ids "sums of two inputs" 1 'sum(embed(tokens + reward, table), "hidden")' "ids.lua:5: $beyond"
ids "some labels of more classes" 1 'ce(where(lt(labels, 20), labels, -1))' "ids.lua:4: $beyond 19, beyond its end"
printf '\0\1\2\375\4\5\6\0' | array "$dir/set/reward.npy" "|i1" "8,"
ids "an index of -3" 1 'sum(embed(reward, table), "hidden") + 0 * f32(tokens)' \
    "data.train: index -3 at 3 of $dir/set/reward.npy is beyond the axis of 7"
ids "-3 plus a constant" 0 'sum(embed(minimum(reward + 3, 6), table), "hidden") + 0 * f32(tokens)'
ids "-3 plus too small a constant" 1 'sum(embed(minimum(reward + 1, 6), table), "hidden") + 0 * f32(tokens)' "ids.lua:5: $beyond -2, beyond its end"

# ---- logits that text is drawn from ------------------------------------------------

# text NAME STATUS OUTPUT MESSAGE: a model with this output, by `generate`
text() {
    cat >"$dir/text.lua" <<END
axes { batch=2, seq=8, hidden=16, vocab=256 }
local x = embed(input("tokens", "batch seq"), param("embed", "vocab hidden"))
local z = dot(x, param("head", "hidden vocab"), "hidden")
loss("l", mean(cross_entropy(z, input("labels", "batch seq"), "vocab"), "batch seq"))
$3
END
    rm -rf "$dir/t"
    run t text LICENSE >"$dir/said"
    is "$1" "$2" "$PLEAT" generate "$dir/t" --prompt ab -n 2
    [ -z "$4" ] || says "is refused" "error: no logits: $4"
}
text "logits" 0 'output("logits", z)'
text "logits of an axis of another name" 0 'output("logits", rename(z, {vocab="letter"}))'
text "logits that are hidden values" 1 'output("logits", x)' "output 'logits' needs one axis beside batch and sequence"
text "no logits" 1 '' "the model has no output 'logits'"

printf '1..%d\n' $n
exit $bad
