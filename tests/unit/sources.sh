#!/bin/sh
# sources: two sets of weights: from.SCOPE fills the parameters below a scope, by our names and
# by those of Hugging Face, and freezes them; equal ones are stored once; what is refused.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/sources
rm -rf "$dir" && mkdir -p "$dir" || exit 2
. tests/expect
cp README.md "$dir/text"
cat >"$dir/hf.lua" <<'LUA'
hf {
  config={ vocab_size=size("vocab") }, embed={ "embed.weight", "vocab hidden" }, head={ "head.weight", "vocab hidden" },
  ["layers.{i}.wq"]={ "model.{i}.q.weight", "(heads dim) hidden" }, ["layers.{i}.wk"]={ "model.{i}.k.weight", "(heads dim) hidden" },
  ["layers.{i}.wv"]={ "model.{i}.v.weight", "(heads dim) hidden" }, ["layers.{i}.wo"]={ "model.{i}.o.weight", "hidden (heads dim)" },
  ["layers.{i}.w1"]={ "model.{i}.up.weight", "WIDTH hidden" }, ["layers.{i}.w2"]={ "model.{i}.down.weight", "hidden WIDTH" },
  ["layers.{i}.weight"]={ "model.{i}.norm.weight", "hidden" },
}
LUA
# teacher.lua: its teacher alone, distill.lua; both with hf{}
sed '/^local student/,$d; s/ffn=24, //' tests/models/distill.lua >"$dir/teacher.lua"
echo 'loss("lm", mean(cross_entropy(model(tokens, 2, "wide"), labels, "vocab"), "batch seq"))' >>"$dir/teacher.lua"
sed 's/WIDTH/wide/g' "$dir/hf.lua" >>"$dir/teacher.lua"
sed 's/"ffn")/"wide")/; s/ffn=24, //' tests/models/distill.lua >"$dir/distill.lua"
sed 's/WIDTH/wide/g' "$dir/hf.lua" >>"$dir/distill.lua"

# run NAME MODEL STEPS key=value ..
run() {
    run_name=$1 run_model=$2 steps=$3
    shift 3
    "$PLEAT" run "$dir/$run_model.lua" target=host world=1 axes.vocab=256 data.train="$dir/text" data.tokenizer=bytes train.steps="$steps" name="$dir/$run_name" "$@"
}
loss() { sed -n "s/.*\"step\": $2,.*\"loss\": \([0-9.]*\).*/\1/p" "$dir/$1/metrics.jsonl"; }

is "a teacher" 0 run t teacher 4
is "as a Hugging Face folder" 0 "$PLEAT" export "$dir/t" "$dir/hub"
is "a student of a run" 0 run a distill 3 from.teacher="$dir/t"
is "a student of the folder" 0 run b distill 3 from.teacher="$dir/hub"
is "has the same losses" 0 test "$(loss a 3)" = "$(loss b 3)" -a "$(loss a 3)" != ""
is "of initial values others" 0 run c distill 3 "train.freeze=teacher.*"
is "which differ" 1 test "$(loss a 3)" = "$(loss c 3)"
"$PLEAT" ckpt diff "$dir/a" "$dir/c" >"$dir/list"
is "the checkpoint has the teacher" 0 grep -q "^teacher.layers.1.w1 " "$dir/list"
is "which has no moments" 1 grep -q "^optim.*teacher" "$dir/list"
is "it goes on without the folder" 0 "$PLEAT" run "$dir/a" resume=1 train.steps=4 from.teacher="$dir/none"
is "the student alone is exported" 0 "$PLEAT" export "$dir/a" "$dir/out"
is "without the teacher" 1 grep -q "model.1" "$dir/out/model.safetensors"

# A student that is the teacher, with a frozen part.
sed 's/tokens, 1, /tokens, 2, /' "$dir/distill.lua" >"$dir/self.lua"
is "a policy and its reference" 0 run s self 2 from="$dir/hub" from.teacher="$dir/hub" "train.freeze=embed layers.0.*"
is "apart" 0 run p self 2 from="$dir/hub" from.teacher="$dir/t" "train.freeze=embed layers.0.*"
is "the same losses" 0 test "$(loss s 2)" = "$(loss p 2)" -a "$(loss s 2)" != ""
"$PLEAT" show "$dir/s" --memory >"$dir/list"
is "equal weights are stored once" 1 grep -q "teacher.layers.0.w1" "$dir/list"
is "others twice" 0 grep -q "teacher.layers.1.w1" "$dir/list"
"$PLEAT" show "$dir/p" --memory >"$dir/list"
is "apart they are stored twice" 0 grep -q "teacher.layers.0.w1" "$dir/list"

is "no such scope" 1 run r distill 1 from.tutor="$dir/t"
says "said so" "from.tutor: no parameter is named 'tutor.*'"
is "no such folder" 1 run r distill 1 from.teacher="$dir/none"
is "the weights of another model" 1 run r distill 1 from.teacher="$dir/a"
printf '1..%d\n' $n
exit $bad
