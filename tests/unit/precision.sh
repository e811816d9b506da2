#!/bin/sh
# precision: what a run tells of numbers of few bits, the same in folds; histories
# of delayed scaling in checkpoints, resumed and in another fold; a run compared
# with one in another precision.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/precision
rm -rf "$dir" && mkdir -p "$dir" || exit 2
. tests/expect

# started NAME key=value..; run: the same, its lines in NAME.lines
started() {
    to=$1
    shift
    "$PLEAT" run models/tiny.lua target=host axes.batch=2 axes.seq=16 axes.hidden=32 axes.kv=2 axes.dim=8 axes.ffn=16 train.batch=8 \
        train.schedule=constant data.train=LICENSE data.valid= precision.policy=fp8 precision.place=all name="$dir/$to" "$@"
}
run() {
    started "$@" || return
    grep '"loss"' "$dir/$to/metrics.jsonl" >"$dir/$to.lines"
}
# near NAME NAME TOLERANCE: all numbers of fp8.* and the losses of two runs
near() {
    for f in "$1" "$2"; do
        grep -o '"fp8[^,]*\|"loss[^,]*' "$dir/$f.lines" >"$dir/$f.near"
    done
    paste "$dir/$1.near" "$dir/$2.near" | awk -v t="$3" '{ d = $2 - $4; m = $2 > $4 ? $2 : $4
        if ($1 != $3 || d > t * m || d < -t * m) print; n++ }
        END { if (n < 2) print "too few" }' | tee "$dir/log" | wc -l | grep -qx 0
}
# same NAME NAME [STEP]: the bits of two checkpoints, of step 2
same() {
    at=step-0000000${3:-2}
    for f in model optim; do
        cmp "$dir/$1/ckpt/$at/$f.safetensors" "$dir/$2/ckpt/$at/$f.safetensors" || return
    done
}

is "watched" 0 run one precision.watch=1 train.steps=2
for class in activations weights gradients; do
    for stat in amax scale saturated flushed; do
        is "$class: $stat" 0 [ "$(grep -c "fp8.$class.$stat\": [0-9]" "$dir/one.lines")" = 2 ]
    done
done
is "TensorBoard too" 0 grep -qa metric.fp8.gradients.flushed "$dir"/one/events*
is "in stages, on ranks of experts" 0 run spread precision.watch=1 train.steps=2 fold.pp=3 fold.ep=2 world=6
is "are those of one rank" 0 near one spread 1e-3
# Of a weight with one scale for both of its products, others with two.
zero=
for fold in one three; do
    is "shares of weights" 0 "$PLEAT" run tests/hf/qwen2.lua target=host train.batch=8 train.steps=1 data.train=LICENSE \
        data.valid= precision.policy=fp8 precision.recipe=mxfp8 precision.place=all precision.watch=1 \
        name="$dir/weights-$fold" $zero
    grep '"loss"' "$dir/weights-$fold/metrics.jsonl" | grep -o '"fp8.weights.flushed[^,]*' >"$dir/weights-$fold.share"
    zero="fold.dp=2 fold.zero=3 world=2"
done
is "where weights are gathered for each product" 0 cmp "$dir/weights-one.share" "$dir/weights-three.share"
for recipe in delayed tensor blockwise; do
    is "products of a metric, once a step" 0 "$PLEAT" run tests/models/post.lua target=host train.batch=8 train.steps=2 data.train=LICENSE \
        precision.place=all precision.recipe=$recipe precision.watch=1 name="$dir/post-$recipe"
done
is "not asked for" 0 run off train.steps=2
is "there are none" 1 grep -q fp8 "$dir/off.lines"
is "nothing else changes" 0 [ "$(grep -o '"loss[^,]*' "$dir/off.lines")" = "$(grep -o '"loss[^,]*' "$dir/one.lines")" ]

# At an interval: the same numbers, of these steps, and of the run the same bits.
is "each step of five" 0 run each precision.watch=1 train.steps=5 train.save_every=4
is "every second of them" 0 run second precision.watch=2 train.steps=5 train.save_every=4
is "in steps 2, 4 and the last" 0 [ "$(grep '"fp8' "$dir/second.lines" | cut -d, -f1 | tr -dc 0-9)" = 245 ]
for step in 2 4 5; do
    for f in each second; do
        grep "{\"step\": $step," "$dir/$f.lines" | grep -o '"fp8[^,]*' >"$dir/$f.fp8"
    done
    is "step $step as if each were watched" 0 cmp "$dir/each.fp8" "$dir/second.fp8"
done
is "to the same bits" 0 same each second 4
is "its plan" 0 "$PLEAT" show "$dir/second/plan"
says "has a program of its own" "program step.watched"
is "with rows that overflow" 0 run over precision.watch=2 train.steps=3 fold.ep=4 world=4 route.factor=1.05
is "which fall back" 0 grep -q '"step": 2.*fp8.gradients.flushed.*"fallback": true' "$dir/over.lines"
is "not watched in others" 0 [ "$(grep -c '"fp8' "$dir/over.lines")" = 2 ]

is "in a run without few bits" 0 run wide precision.policy=bf16 precision.watch=1 train.steps=1
says "is said to be of nothing" "warning: precision.watch changes nothing: no product is of few bits"

# idle KEY=VALUE LINES key=value..: the key is said to change nothing, or not.
idle() {
    key=${1%%=*}
    "$PLEAT" compile models/tiny.lua target=host -o "$dir/idle.plan" "$@" 2>"$dir/idle" || return
    [ "$(grep -c "^warning: $key changes nothing: " "$dir/idle")" = "$lines" ]
}
bits="precision.policy=fp8 precision.place=all"
lines=1
for case in "keep=*" "place=all" "watch=1" "wire=all" "history=3" "margin=1" "primary=all"; do
    is "$case without few bits" 0 idle "precision.$case" precision.policy=bf16
done
for case in "wire=pays precision.recipe=mxfp8" "kept=rounded precision.recipe=mxfp8" "history=3 precision.recipe=tensor" "margin=1 precision.recipe=blockwise" "primary=all precision.recipe=mxfp8"; do
    # shellcheck disable=SC2086
    is "$case" 0 idle precision.$case $bits
done
lines=0
for case in "keep=layers.0.*" "place=all" "watch=1" "wire=all" "history=3 precision.recipe=delayed" \
    "margin=1 precision.recipe=delayed" "primary=all"; do
    # shellcheck disable=SC2086
    is "$case has an effect" 0 idle precision.$case $bits
done
is "a name of no weight" 0 started unnamed 'precision.keep=*norm*,layers.0.*' train.steps=0
says "changes nothing" "precision.keep: '*norm*' changes nothing: it names no weight of a product"
is "widths that no kernel has" 0 "$PLEAT" compile models/tiny.lua target=cuda precision=fp8 precision.wgrad=none -o "$dir/idle.plan"
says "are bf16, which is said" "no product is of few bits (layers.0.attn.wq stays: no kernel multiplies such numbers)"

set -- precision.recipe=delayed precision.history=3 train.save_every=2
is "delayed" 0 run whole "$@" train.steps=4 precision.watch=1
says "a tensor that saturates, with its line" "models/tiny.lua:16: warning: fp8.value.layers.0.moe.w2 saturates in step 2"
is "half of it" 0 run half "$@" train.steps=2 precision.watch=1
cp -r "$dir/half" "$dir/other"
is "goes on" 0 run half "$@" train.steps=4 precision.watch=1 resume=1
is "to the same bits" 0 same whole half 4
is "in another fold" 0 run other "$@" train.steps=4 precision.watch=1 resume=1 fold.ep=4 world=4
is "to the same numbers" 0 near whole other 2e-3
is "histories of another length" 1 run half "$@" precision.history=5 train.steps=6 resume=1
says "are refused" "amax histories are as long"

is "from its weights with another recipe" 0 run weights from="$dir/whole" train.steps=1
is "with its histories" 0 run histories from="$dir/whole" precision.recipe=delayed precision.history=3 train.steps=1
cp "$dir/whole/config.lua" "$dir/config"
is "compared as a folder" 1 "$PLEAT" run "$dir/whole" resume=1 precision.compare=bf16:2
says "is refused" "run the model file, not a plan or a run's folder"
is "and leaves it" 0 cmp "$dir/whole/config.lua" "$dir/config"
is "compared where it stands" 0 started whole "$@" resume=1 precision.compare=bf16:2
says "losses of both" "     1 | 5."
is "another recipe where it stands" 0 run whole train.save_every=2 precision.history=3 precision.recipe=tensor train.steps=6 resume=1
is "and delayed again" 0 run whole "$@" train.steps=8 resume=1

set -- precision.policy=bf16 precision.keep='*' precision.moments=stochastic train.save_every=1
is "stochastic moments" 0 run chance "$@" train.steps=2
is "half of it" 0 run begun "$@" train.steps=1
is "goes on" 0 run begun "$@" train.steps=2 resume=1
is "to the same bits" 0 same chance begun
is "in a fold" 0 run folded "$@" train.steps=2 fold.ep=4 world=4
is "the same numbers" 0 near chance folded 2e-3
is "beside dropout, which counts steps too" 0 "$PLEAT" compile tests/models/dropout.lua precision=bf16 precision.moments=stochastic -o "$dir/plan"
is "to nearest" 0 run nearest "$@" precision.moments=bf16 train.steps=2
is "is something else" 1 same chance nearest

# Weights kept as numbers and scales alone: the bits of those rounded for each step,
# of blocks that shards cut, evaluated, watched, gathered, of checkpoints both ways.
set -- train.save_every=1 train.clip=0 axes.hidden=144 axes.ffn=136 axes.expert=4 axes.batch=1 train.batch=4 fold.dp=2 world=2
vals() { for f in "$1" "$2"; do grep -o '"val_loss[^,]*\|"fp8[^,]*' "$dir/$f/metrics.jsonl" >"$dir/$f.vals"; done; cmp "$dir/$1.vals" "$dir/$2.vals"; }
valid="data.valid=LICENSE train.eval_every=1 train.eval_steps=1 precision.watch=1"
# shellcheck disable=SC2086
is "weights in bf16" 0 run rounded "$@" $valid train.steps=2
# shellcheck disable=SC2086
is "as numbers alone" 0 run numbers "$@" $valid train.steps=2 precision.primary=all
is "to the same bits" 0 same rounded numbers
is "evaluated and watched to the same" 0 vals rounded numbers
is "half of it" 0 run there "$@" train.steps=1
is "goes on as numbers" 0 run there "$@" train.steps=2 precision.primary=all resume=1
is "to the same bits" 0 same rounded there
cp -r "$dir/there" "$dir/apart"
is "further" 0 run there "$@" train.steps=3 precision.primary=all resume=1
is "in another fold" 0 run apart "$@" train.steps=3 precision.primary=all resume=1 fold.dp=4 fold.ep=4 fold.zero=3 world=4
is "the same numbers" 0 near there apart 2e-3
is "half of it as numbers" 0 run back "$@" train.steps=1 precision.primary=all
is "goes on in bf16" 0 run back "$@" train.steps=2 resume=1
is "to the same bits" 0 same rounded back
is "gathered in bf16" 0 run third "$@" train.steps=2 fold.zero=3
is "gathered as numbers" 0 run gathered "$@" train.steps=2 fold.zero=3 precision.primary=all
is "to the same bits" 0 same third gathered
is "where ranks cut blocks" 0 "$PLEAT" compile models/tiny.lua target=host precision.policy=fp8 precision.place=all \
    precision.primary=all fold.etp=2 fold.tp=2 world=2 axes.ffn=192 -o "$dir/cut.plan" -d why
says "weights stay" "layers.0.moe.w1 lives in bf16: ranks of tp or etp cut its blocks"
says "others do not" "layers.0.attn.wq lives as numbers of 8 bits and scales"

# Random numbers by element, step and micro-batch: of rows recomputed and resumed too.
set -- precision.recipe=nvfp4 train.save_every=1
is "NVFP4" 0 run four "$@" train.steps=2
is "half of it" 0 run two "$@" train.steps=1
is "goes on" 0 run two "$@" train.steps=2 resume=1
is "to the same bits" 0 same four two
is "recomputed" 0 run rebuilt "$@" train.steps=2 train.recompute=full
is "the same bits" 0 same four rebuilt
is "in a fold" 0 run ranks "$@" train.steps=2 fold.dp=2 fold.ep=2 fold.zero=3 world=2
is "the same numbers" 0 near four ranks 2e-3

set -- precision.policy=bf16 train.steps=2
is "gradients in fp32" 0 run wide-grads "$@" train.batch=2
is "in bf16" 0 run narrow-grads "$@" train.batch=2 precision.grads=bf16
is "nearly the same numbers" 0 near wide-grads narrow-grads 2e-3
is "but others" 1 same wide-grads narrow-grads
is "sums over micro-batches" 0 run wide-sums "$@"
is "stay fp32" 0 run narrow-sums "$@" precision.grads=bf16
is "to the same bits" 0 same wide-sums narrow-sums
lines=1
is "which is said" 0 idle precision.grads=bf16 precision.policy=bf16 train.batch=16
is "in fp64 too" 0 idle precision.grads=bf16 precision.policy=fp64 axes.batch=8 train.batch=8
lines=0
is "but of one micro-batch" 0 idle precision.grads=bf16 precision.policy=bf16 axes.batch=8 train.batch=8

set -- precision.recipe=delayed
is "compared" 0 started none "$@" train.steps=3 precision.compare=bf16:3
says "losses of both" "     1 | 5."
says "gradients" "gradients of the first step, the furthest apart:"
is "leaves nothing" 1 [ -e "$dir/none" ]
is "with itself" 0 started none precision.policy=bf16 precision.keep='*' precision.compare=bf16:2
is "is the same" 0 [ "$(grep -c '+0.00%.*+0.00%' "$dir/log")" = 2 ]
is "no steps" 1 started none precision.compare=bf16
says "say how it is written" "precision.compare is a policy and up to 100000 steps, bf16:50; got 'bf16'"
is "a word after them" 1 started none precision.compare=bf16:3x
says "is refused" "got 'bf16:3x'"
is "bf16 with FP8" 0 started none precision.policy=bf16 precision.recipe=blockwise precision.keep='layers.*' precision.compare=fp8:1
is "is the same where all is kept" 0 [ "$(grep -c '+0.00%.*+0.00%' "$dir/log")" = 1 ]
is "and another where nothing is" 0 started none precision.policy=bf16 precision.compare=fp8:1
is "is another" 0 [ "$(grep -c '+0.00%.*+0.00%' "$dir/log")" = 0 ]
is "FP8 with itself, its batch to grow" 0 started none train.ramp=4,4,8 precision.compare=fp8:2
is "is the same" 0 [ "$(grep -c '+0.00%.*+0.00%' "$dir/log")" = 2 ]
is "no policy" 1 started none precision.compare=half:3
printf '1..%d\n' $n
exit $bad
