#!/bin/sh
# cli: the commands as a user types them, from a model file to text: exit
# statuses, the files they write, and one training run that is looked at, evaluated
# and continued. Every command runs on the demo model, made smaller by keys.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/cli
rm -rf "$dir" && mkdir -p "$dir" || exit 2
wide="axes.batch=2 axes.seq=16 train.batch=4" thin="axes.hidden=16 axes.ffn=16"
small="$wide $thin"
printf '1..%d\n' $((138 + $(ls models/*.lua | wc -l)))
. tests/expect

is "-h prints the commands" 0 "$PLEAT" -h
says "-h names compile" compile
is "--version" 0 "$PLEAT" --version
says "it names formats" "plan $("$PLEAT" help formats | sed -n 's/^plan  *\([0-9]*\).*/\1/p' | tail -n 1), run"
is "--version without a compiler" 0 env CC=no-such-compiler "$PLEAT" --version
is "pleat-run --version" 0 "$PLEAT-run" --version
is "help formats" 0 "$PLEAT" help formats
is "no command" 2 "$PLEAT"
is "help keys" 0 "$PLEAT" help keys
says "help keys names fold.ep" fold.ep

is "show --fold of a model" 0 "$PLEAT" show --fold models/tiny.lua \
    fold.tp=2 fold.ep=4 world=8 train.batch=128
says "show --fold draws a row" "dp2 | 4 5"
is "target=null" 0 "$PLEAT" run models/tiny.lua target=null world=64 \
    train.batch=1024 fold.ep=8
says "target=null counts collectives" "sendrows       ep"

# shellcheck disable=SC2086
is "compile" 0 "$PLEAT" compile models/tiny.lua $small -o "$dir/a.plan"
is "compile to a graph" 0 sh -c \
    "$PLEAT compile models/tiny.lua $small -x route >$dir/a.ir"
is "the graph goes on" 0 "$PLEAT" compile "$dir/a.ir" -o "$dir/b.plan"
is "to the same plan" 0 cmp "$dir/a.plan" "$dir/b.plan"
fold="$small train.batch=8 target=null world=4 fold.pp=2 fold.ep=2 train.offload=activations,moments,masters"
# shellcheck disable=SC2086
is "compile a fold that offloads" 0 "$PLEAT" compile models/tiny.lua $fold -o "$dir/c.plan"
for most in 4096 4000000000; do   # blocks of memory: each below the last, above it
    is "at other addresses to the same plan ($most)" 0 sh -c "MALLOC_MMAP_THRESHOLD_=$most MALLOC_PERTURB_=90 \
        $PLEAT compile models/tiny.lua $fold -o $dir/b.plan && cmp $dir/b.plan $dir/c.plan"
done
is "show" 0 "$PLEAT" show "$dir/a.plan"
says "show prints the bound" "lower bound"
# shellcheck disable=SC2086
is "a plan beyond its memory is refused" 1 "$PLEAT" compile models/tiny.lua \
    $wide memory=1kB -o "$dir/little.plan"
says "it says by how much, and whose" "over the limit of 1000 B; largest: "
# shellcheck disable=SC2086
is "less memory than it would take" 0 "$PLEAT" compile models/tiny.lua \
    $wide memory=42.2MiB -o "$dir/little.plan"
is "show prints the limit" 0 sh -c \
    "$PLEAT show $dir/little.plan | grep '^  limit  *42.20 MiB'"
is "show prints what rebuilding costs" 0 sh -c \
    "$PLEAT show $dir/little.plan | grep '^  rebuilding  *[0-9.]*[1-9][0-9.]* ms'"
is "show --kernel of a label" 0 "$PLEAT" show "$dir/a.plan" --kernel layers.0.attn.rope.mul.4
says "prints the text below the line of a call" "'layers.0.attn.rope.mul.4' (models/tiny.lua:6)"
kernel=$(sed -n 's/^void \(k_[0-9a-f]*\)(.*/\1/p' "$dir/said")
is "show --kernel of a name prints the same" 0 sh -c "
    $PLEAT show $dir/a.plan --kernel $kernel | cmp - $dir/said"
calls=$(awk -v k="$kernel" '/^sig / && $2 == k { its[n + 0] = 1 } /^sig / { n++ }
    /^kernel .* sig=/ { sub(/.* sig=/, ""); c += ($1 + 0) in its } END { print c }' "$dir/a.plan")
is "all its calls are above the text" 0 test "$(grep -c '^// stage' "$dir/said")" = "$calls"
is "no such kernel" 1 "$PLEAT" show "$dir/a.plan" --kernel layers.0.attn.rope.mull.4
says "names the nearest" "'layers.0.attn.rope.mull.4' (did you mean 'layers.0.attn.rope.mul.4'?)"
is "kernels of target=null" 1 "$PLEAT" show "$dir/c.plan" --kernel layers.0.attn.rope.mul.4
says "have no text" "error: kernels of a plan for target=null have no text"
is "compile for 2 GPUs" 0 "$PLEAT" compile models/tiny.lua target=cuda world=2 fold.ep=2 -o "$dir/gpu.plan"
is "show --kernel of an exchange of rows" 0 "$PLEAT" show "$dir/gpu.plan" --kernel layers.0.moe.alltoall.2
says "prints its call" "'layers.0.moe.alltoall.2' (models/tiny.lua:22)"
is "show draws" 0 "$PLEAT" show "$dir/a.plan" --html "$dir/a.html" \
    --trace "$dir/a.json"
is "check draws a graph" 0 "$PLEAT" check models/tiny.lua --dot "$dir/a.dot"
is "compile draws one with shards" 0 "$PLEAT" compile models/tiny.lua $small \
    world=2 fold.ep=2 --dot "$dir/b.dot" -o "$dir/d.plan"
is "they are on its arrows" 0 grep -q '\[label="f32 .*@ dp:micro' "$dir/b.dot"
is "no graph after a pass that makes none" 2 "$PLEAT" compile \
    models/tiny.lua -d alloc --dot "$dir/c.dot"
is "nothing of a program that is not there" 1 "$PLEAT" compile \
    models/tiny.lua -p backward --dot "$dir/c.dot" -o "$dir/d.plan"
for file in a b; do
    if command -v dot >/dev/null; then
        is "Graphviz draws $file" 0 dot -Tsvg "$dir/$file.dot" -o "$dir/$file.svg"
    else
        echo "ok - cli: Graphviz draws $file # SKIP no Graphviz here"
    fi
done
is "compile for 8 ranks" 0 "$PLEAT" compile models/tiny.lua fold.ep=4 world=8 \
    train.batch=128 fold.zero=3 -o "$dir/w.plan"
"$PLEAT" show "$dir/w.plan" --trace "$dir/w.json" >"$dir/out" 2>&1
is "its trace has a lane a stream" 0 grep -q '"name":"step comm"' "$dir/w.json"
is "show --rank says where" 0 sh -c "$PLEAT show $dir/w.plan --rank 6 |
    grep 'dp 6/8; expert etp 0/1 ep 2/4 edp 1/2'"
is "what ranks hold of cut parameters is all of them, once" 0 sh -c "
    for r in 0 1 2 3 4 5 6 7; do $PLEAT show $dir/w.plan --rank \$r; done |
    awk '/^  param .* tensors/ { held += \$4; all = \$6 }
        END { exit !(held == all && all > 0) }'"
is "no such rank" 1 "$PLEAT" show "$dir/w.plan" --rank 8
is "one stage has no schedule" 1 "$PLEAT" show "$dir/a.plan" --schedule
says "one stage has no schedule, it says" "not cut into stages"
is "a changed plan is refused" 1 sh -c "sed 's/^tokens 64/tokens 65/' \
    $dir/a.plan >$dir/c.plan; $PLEAT show $dir/c.plan"

is "run" 0 "$PLEAT" run "$dir/a.plan" name="$dir/run" train.steps=2 \
    train.save_every=1
cp "$dir/a.plan" "$dir/plan.lua" && cp "$dir/a.ir" "$dir/graph"
is "a plan is known by its content: eval" 0 "$PLEAT" eval "$dir/plan.lua"
says "which evaluates it" "val loss"
is "and says of what" 0 grep -F "of initial values: " "$dir/said"
is "bench" 0 "$PLEAT" bench "$dir/plan.lua"
is "run" 0 "$PLEAT" run "$dir/plan.lua" train.steps=1 name="$dir/unsaid"
is "check" 1 "$PLEAT" check "$dir/plan.lua"
says "which says what it is" "plan.lua is a plan, not a model"
is "search" 1 "$PLEAT" search "$dir/plan.lua" cluster=h100x8
says "which says so too" "plan.lua is a plan, not a model"
cat >"$dir/flat.lua" <<'LUA'
axes { batch=1, seq=8, hidden=8, vocab=256 }
local x = embed(input("tokens", "batch seq"), param("embed", "vocab hidden"))
local logits = dot(x, param("head", "hidden vocab"), "hidden")
output("logits", logits)
LUA
cp "$dir/flat.lua" "$dir/idle.lua"
echo 'loss("lm", mean(cross_entropy(logits, input("labels", "batch seq"), "vocab"), "batch seq"))' >>"$dir/flat.lua"
is "search of a model without layers" 0 "$PLEAT" search "$dir/flat.lua" cluster=h100x8 train.batch=8
says "cuts it otherwise" "the best"
is "into stages" 1 "$PLEAT" search "$dir/flat.lua" cluster=h100x8 fold.pp=2
says "it cannot be cut" "error: fold.pp=2, but the model has no layers to cut"
is "run without a loss" 1 "$PLEAT" run "$dir/idle.lua" target=host name="$dir/idle" data.train=LICENSE
says "says what is missing" "error: the model has no loss: there is nothing to train"
is "and makes no folder" 1 [ -e "$dir/idle" ]
is "eval" 1 "$PLEAT" eval "$dir/idle.lua" target=host data.valid=LICENSE
says "too" "error: the model has no loss: there is nothing to evaluate"
is "search" 1 "$PLEAT" search "$dir/idle.lua" cluster=h100x8
says "and search" "error: search: the model has no loss"
is "a graph too" 0 "$PLEAT" compile "$dir/graph" -o "$dir/b.plan"
is "to the same plan, again" 0 cmp "$dir/a.plan" "$dir/b.plan"
is "a run's folder is not written over" 1 "$PLEAT" run "$dir/a.plan" \
    name="$dir/run"
# shellcheck disable=SC2086
cp models/tiny.lua "$dir/copy.lua"
# shellcheck disable=SC2086
is "a copied model with other data" 0 "$PLEAT" run "$dir/copy.lua" $small \
    train.steps=1 data.train=LICENSE name="$dir/copied"
says "its data.valid is not there" "no file $dir/../LICENSE; there will be no"
is "resume" 0 "$PLEAT" run models/tiny.lua $small name="$dir/run" resume=1 \
    train.steps=3
says "resume does the third step" "step    3/3"
is "show of a run's folder" 0 "$PLEAT" show "$dir/run"
says "shows its plan" "lower bound"

# A loss that is -infinity because its logarithm is, in one rank and two: the line.
sed 's/^loss("lm", \(.*\))$/loss("lm", \1 + mean(log(relu(x-1000)), "batch seq hidden"))/' \
    models/tiny.lua >"$dir/bad.lua"
line=$(grep -n '^loss' "$dir/bad.lua" | cut -d: -f1)
for fold in world=1 "fold.tp=2 fold.ep=2 world=2"; do
    # shellcheck disable=SC2086
    is "a loss is infinite, $fold" 3 "$PLEAT" run "$dir/bad.lua" $small $fold \
        precision=bf16 name="$dir/bad.$fold" data.train=LICENSE data.valid=LICENSE
    says "and its line is said" "/bad.lua:$line)"
done

# A NaN of either sign is one word.
cat >"$dir/nan.lua" <<'END'
axes { batch=2, seq=4, hidden=8 }
local w = param("w", "hidden")
metric("under", mean(sqrt(w - 100), "hidden"))
metric("over", -mean(sqrt(w - 100), "hidden"))
loss("l", mean(w * w, "hidden"))
END
is "a metric is NaN" 0 "$PLEAT" run "$dir/nan.lua" target=host train.steps=2 name="$dir/nan"
says "it is said" "under nan over nan"
is "and null in metrics.jsonl" 0 grep -q '"under": null, "over": null' "$dir/nan/metrics.jsonl"

# A batch that grows is a run with the small one, continued with the large one.
ramp="axes.batch=2 axes.seq=16 $thin train.save_every=0"
# shellcheck disable=SC2086
is "2 steps of 4 sequences" 0 "$PLEAT" run models/tiny.lua $ramp \
    train.batch=4 train.steps=2 name="$dir/two"
# shellcheck disable=SC2086
is "2 of 8" 0 "$PLEAT" run models/tiny.lua $ramp train.batch=8 train.steps=4 \
    resume=1 name="$dir/two"
# shellcheck disable=SC2086
is "train.ramp" 0 "$PLEAT" run models/tiny.lua $ramp train.batch=8 \
    train.steps=4 train.ramp=4,4,8 name="$dir/ramp"
says "train.ramp says when" "batch 8 from step 3"
is "train.ramp: the same bits" 0 cmp "$dir/two/ckpt/step-00000004/model.safetensors" \
    "$dir/ramp/ckpt/step-00000004/model.safetensors"
# shellcheck disable=SC2086
is "train.ramp that misses train.batch" 1 "$PLEAT" run models/tiny.lua $ramp \
    train.batch=8 train.steps=4 train.ramp=4,3,8 name="$dir/missed"
is "a plan has one batch" 1 sh -c "$PLEAT compile models/tiny.lua $small \
    train.ramp=2,2,8 -o $dir/r.plan >/dev/null &&
    $PLEAT run $dir/r.plan name=$dir/one"

# Samples while it trains: the same text whatever the fold.
sampling="axes.seq=16 $thin train.steps=2 train.batch=32 train.sample_every=2 \
    train.sample_prompt=Lic train.sample_tokens=8"
# shellcheck disable=SC2086
is "train.sample_every" 0 "$PLEAT" run models/tiny.lua $sampling \
    name="$dir/says"
says "it says something" "step 2: Lic"
grep -a "step 2: Lic" "$dir/said" >"$dir/said.1"
# shellcheck disable=SC2086
is "train.sample_every, 4 ranks" 0 "$PLEAT" run models/tiny.lua $sampling \
    world=4 fold.ep=2 name="$dir/says4"
grep -a "step 2: Lic" "$dir/log" >"$dir/said.2"
is "it says the same" 0 cmp "$dir/said.1" "$dir/said.2"
# shellcheck disable=SC2086
is "a rank without whole logits" 1 "$PLEAT" run models/tiny.lua $sampling \
    fold.tp=2 world=2 name="$dir/mute"
says "it says why" "a rank has a part of the logits"
if python3 -c 'import tensorboard' 2>/dev/null; then
    is "TensorBoard reads numbers and texts" 0 python3 -c '
import sys
from tensorboard.backend.event_processing import event_accumulator as e
a = e.EventAccumulator(sys.argv[1])
a.Reload()
said = a.Tensors("sample")[0]
assert [x.step for x in a.Scalars("loss")] == [1, 2]
assert said.step == 2 and said.tensor_proto.string_val[0][:3] == b"Lic"
assert b"| train.steps | 2 |" in a.Tensors("keys")[0].tensor_proto.string_val[0]
' "$dir/says"
else
    echo "ok - cli: TensorBoard reads numbers and texts # SKIP not installed"
fi

# Two validation sets, by a table of the model file.
sets="law=\"$PWD/LICENSE\", all=\"$PWD/README.md\""
sed "s|\"../LICENSE\", valid=.*|\"$PWD/LICENSE\", valid={ $sets } }|" \
    models/tiny.lua >"$dir/two.lua"
# shellcheck disable=SC2086
is "two validation sets" 0 "$PLEAT" run "$dir/two.lua" axes.seq=16 $thin \
    train.batch=8 train.steps=1 train.eval_steps=2 name="$dir/sets"
says "one is said by name" " of law"
is "and in metrics.jsonl" 0 grep -q '"set": "all", "val_loss"' \
    "$dir/sets/metrics.jsonl"
is "a set without a name" 1 "$PLEAT" run models/tiny.lua train.steps=1 \
    "data.valid=law=LICENSE README.md" name="$dir/unnamed"

# shellcheck disable=SC2086
"$PLEAT" run models/tiny.lua $small target=host train.steps=2 train.eval_every=1 \
    train.eval_steps=20000 name="$dir/long" >"$dir/long.log" 2>&1 &
until grep -q "^step" "$dir/long.log" || ! kill -0 $!; do sleep 0.1; done
kill $!
is "a signal in a long validation" 4 wait $!
is "ends it, and the run" 0 sh -c "grep 'stopped at step 1' $dir/long.log &&
    ! grep 'val loss' $dir/long.log"
is "steps count from 1" 1 "$PLEAT" run "$dir/run" --replay 0
is "generate" 0 "$PLEAT" generate "$dir/run" --prompt Lic -n 4 seed=3
for key in train.lr=1 fold.tp=2 axes.batch=2; do
    is "generate takes no $key" 1 "$PLEAT" generate "$dir/run" $key
    says "a text does not depend on it"
done
is "generate takes no weights but the run's" 1 "$PLEAT" generate "$dir/run" from=models
says "has weights of its own"
for file in models/*.lua; do
    name=$(basename "$file" .lua)
    is "new $name" 0 sh -c "$PLEAT new $name $dir/$name.lua &&
        diff $file $dir/$name.lua | grep -v '^[<>] \(-- \)\?data *{' | { ! grep '^[<>]'; } &&
        $PLEAT check $dir/$name.lua"
done
is "check --json" 0 "$PLEAT" check --json models/tiny.lua
says "check --json counts" '"parameters": 2723712'
printf 'axes { a=2 }\nx = 1\n' >"$dir/stray.lua"
is "check --json of a stray global" 1 "$PLEAT" check --json "$dir/stray.lua"
says "check --json names the line" '"line": 2'
mkdir -p "$dir/wall/trace.0.json/full"
# shellcheck disable=SC2086
is "a file that cannot be written while it trains" 0 "$PLEAT" run models/tiny.lua \
    $small train.steps=2 train.trace=1 data.train=LICENSE data.valid= name="$dir/wall"
says "is a warning" "warning: cannot write $dir/wall/trace.0.json"
printf 'axes { a=2 }\nlocal x = param("w\377", "a")\n' >"$dir/byte.lua"
is "check --json of what is no UTF-8" 1 "$PLEAT" check --json "$dir/byte.lua"
says "check --json says its message" "is not a name"
is "no such ckpt command" 2 "$PLEAT" ckpt prune "$dir/run"
says "it says that" "ckpt prune: there is no such command"
is "no such data command" 2 "$PLEAT" data cat x
says "it says that too" "data cat: there is no such command"
printf '{"text": ""}\n{"text": ""}\n' >"$dir/none.jsonl"
is "texts without a token" 0 "$PLEAT" data tokenize "$dir/none.jsonl" -o "$dir/none"
says "are files that nobody reads" "has no tokens"
printf '{"text": "a"}\n{"text": ""}\n' >"$dir/some.jsonl"
is "empty documents" 0 "$PLEAT" data tokenize "$dir/some.jsonl" -o "$dir/some"
is "inspect takes a prefix" 0 "$PLEAT" data inspect "$dir/some"
says "inspect counts" "sequences of 2 documents"
if command -v luacheck >/dev/null; then
    is "luacheck passes all models" 0 luacheck -q models
    is "luacheck flags a stray global" 1 luacheck -q --config .luacheckrc \
        "$dir/stray.lua"
else
    echo "ok - cli: luacheck passes all models # SKIP no luacheck here"
    echo "ok - cli: luacheck flags a stray global # SKIP no luacheck here"
fi
# A kernel of the host is compiled once: another plan compiles what it lacks, and
# a damaged library is made again.
made() { ls "$dir/kernels/pleat" | grep -c "$1\$"; }
# shellcheck disable=SC2086
kernels() {
    rm -rf "$dir/cached"
    XDG_CACHE_HOME=$dir/kernels "$PLEAT" run models/tiny.lua $small train.steps=1 target=host \
        data.train=LICENSE data.valid= name="$dir/cached" "$@"
}
rm -rf "$dir/kernels"
is "kernels are compiled" 0 kernels
first=$(made .kernel)
is "to a library" 0 test "$(made .so)" = 1
is "kernels are there" 0 kernels
is "none is compiled again" 0 test "$(made .so) $(made .kernel)" = "1 $first"
is "another optimizer" 0 kernels train.clip=0
is "compiles what differs" 0 sh -c "[ $(made .so) = 2 ] && [ $(made .kernel) -gt $first ] && [ $(made .kernel) -lt $((2 * first)) ]"
for so in "$dir"/kernels/pleat/*.so; do echo damaged >"$so"; done
# Parts of a killed process go, those of one that compiles stay.
mkdir "$dir/kernels/pleat/.killed.so.1.pleat-tmp" "$dir/kernels/pleat/.lives.so.1.pleat-tmp"
touch "$dir/kernels/pleat/.killed.so.1.pleat-tmp/0.c"
is "damaged libraries are made again" 0 flock "$dir/kernels/pleat/.lives.so.1.pleat-tmp" \
    env XDG_CACHE_HOME="$dir/kernels" "$PLEAT" run models/tiny.lua $small train.steps=1 target=host \
    data.train=LICENSE data.valid= name="$dir/damaged"
is "parts of a killed process are removed" 0 sh -c \
    "[ \"\$(cd $dir/kernels/pleat && ls -d .*pleat-tmp)\" = .lives.so.1.pleat-tmp ]"
# A compiler that refuses a text, one that fails, one that ends its parent.
cat >"$dir/cc" <<'EOF'
#!/bin/sh
[ "$1" = --version ] && echo "a compiler of this test, whose kernels are in no cache" && exit
for word; do case $word in *.c)
    [ "$REFUSE" ] && echo "$word:1:2: error: refused" && exit 1
    [ "$FAULT" ] && kill -SEGV $PPID && sleep 1
    echo "cc1: fatal error: the disk is full" && exit 1 ;;
esac; done
exec cc "$@"
EOF
chmod +x "$dir/cc"
refused() { CC=$dir/cc REFUSE=1 kernels; }
is "a refused kernel is an internal error" 70 refused
says "that asks for a report" "report this file: "
failing() { CC=$dir/cc REFUSE='' kernels; }
is "a compiler that fails is none" 1 failing
faulty() { CC=$dir/cc REFUSE='' FAULT=1 kernels; }
is "a fault is an internal error" 70 faulty
says "that asks for a report too" "report this file: "
exit $bad
