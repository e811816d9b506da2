#!/bin/sh
# folds: target=cuda under mpirun, GPUs made of this processor (README.md), each
# fold against the same fold of the host in one process: losses, gradients'
# moments and parameters after two steps.
#
# fp64: only the order of sums differs, 1e-15 of a tensor's largest element, and
# 1e-12 shows any mistake; on one rank, where experts are chosen by what is
# learned, 1e-10, as on a GPU (gpu/models_test.c). Of the row with hash experts
# only the second step overflows, and the third, in flight behind it, is held.
# bf16: what is rounded on its way differs; the two are
# no further apart than the host's own fold is from its fp64, twice, since each
# of them is that far. Updates by the products that make gradients (skip_bad=0)
# leave the bits that updates behind them do.
#
# PLEAT_ALL=1 runs all of them; a word runs those that have it.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/fake/folds
. tests/fake/libs
fake_start "$dir" || exit 2
if ! mpirun --version >/dev/null 2>&1; then
    echo "ok - cuda folds # SKIP no mpirun"
    exit 0
fi
bad=0
tr -cd 'a-o' <LICENSE | tr 'a-o' '\000-\016' >"$dir/text.txt"     # 15 words
common="train.batch=4 train.log_every=1 train.eval_every=0
    train.eval_steps=1 data.train=$dir/text.txt data.format=bytes"

# losses RUN: "step loss norm fallback" a line
losses() {
    sed -n 's/^{"step": \([0-9]*\), "loss": \([^,]*\),.*"grad_norm": \([^,]*\),.*/\1 \2 \3/p' \
        "$dir/$1/metrics.jsonl"
}

# train NAME TARGET RANKS MODEL keys...
train() {
    name=$1 target=$2 ranks=$3 model=$4
    shift 4
    rm -rf "$dir/${name:?}"
    # shellcheck disable=SC2086
    if [ "$target" = host ]; then
        "$PLEAT" run "tests/models/$model.lua" $common train.steps="$steps" target=host world="$ranks" "$@" \
            name="$dir/$name"
    else
        on_gpu "" timeout 300 mpirun -n "$ranks" "$PLEAT" run \
            "tests/models/$model.lua" $common train.steps="$steps" target=cuda "$@" name="$dir/$name"
    fi >"$dir/log" 2>&1
}

# fold RANKS PRECISION MODEL keys...
fold() {
    ranks=$1 type=$2 model=$3
    shift 3
    why= limit=1e-12 steps=2
    [ "$model" != hash ] || steps=3
    [ "$ranks" -gt 1 ] || limit=1e-10
    train host host "$ranks" "$model" precision="$type" "$@" || why="the host fails"
    [ "$why" ] || train cuda cuda "$ranks" "$model" precision="$type" "$@" || why="it fails"
    if [ ! "$why" ] && [ "$type" != fp64 ]; then
        train exact host "$ranks" "$model" precision=fp64 "$@" || why="the host fails"
        limit=$(farthest "$dir/host" "$dir/exact" | awk '{ print 2 * $1 }')
    fi
    if [ ! "$why" ]; then
        far=$(farthest "$dir/cuda" "$dir/host")
        why=$(echo "$far" | awk -v l="$limit" '{ if ($1 == "inf" || $1 > l)
            print "differs by", $0, "at most", l }')
    fi
    case $* in *skip_bad=0*)
        [ "$why" ] || train apart cuda "$ranks" "$model" precision="$type" "$@" train.skip_bad=1 || why="it fails apart"
        "$PLEAT" ckpt diff "$dir/cuda" "$dir/apart" 2>&1 | grep -q ' hold the same values$' ||
            why="${why:-updates by products differ from those behind them}" ;; esac
    case $* in *policy* | *stash=*) ;; *factor=*) grep -q '"fallback": true' "$dir/cuda/metrics.jsonl" ||
        why="no step fell back" ;; esac
    [ "$(losses cuda | wc -l)" = $steps ] || why="${why:-steps are missing}"
    if [ "$why" ]; then
        echo "not ok - cuda $ranks ranks, $model $type $*: $why"
        sed 's/^/# /' "$dir/log" | tail -n 4 | cut -c 1-250
        bad=1
    else
        echo "ok - cuda $ranks ranks, $model $type $*: $far, at most $limit"
    fi
}

# Those in front always, the others with PLEAT_ALL.
cases() {
    cat <<'END'
+ 4 fp64 zoo fold.tp=2 fold.dp=2
+ 2 fp64 words fold.cp=2 axes.many=16
- 2 fp64 noise fold.ep=2
+ 2 fp64 chunks fold.cp=2 fold.ring=1
+ 2 fp64 sinks fold.cp=2 fold.ring=1
- 2 bf16 sinks fold.tp=2
+ 2 fp64 hash fold.ep=2 route.factor=1.2 axes.seq=16 axes.hidden=16 axes.ffn=16 axes.heads=2 axes.vocab=16 train.batch=8
+ 1 fp64 window axes.seq=16 axes.hidden=16 axes.ffn=16 axes.heads=2 axes.vocab=128 train.batch=2
+ 4 fp64 apart fold.cp=4 fold.ring=1 fold.ep=2 fold.zero=3 train.recompute=1e12 train.batch=2
+ 2 fp64 apart fold.ep=2 axes.expert=7 fold.pair=1 route.clones=1
- 2 fp64 apart fold.ep=2 axes.expert=7 fold.pair=1
+ 2 fp64 folds fold.ep=2 route.factor=1.9 route.stash=1.1 train.recompute=0 axes.batch=8 axes.seq=16 axes.heads=2 train.batch=16
+ 2 fp64 apart fold.pp=2 train.offload=activations,moments
- 2 fp64 apart fold.dp=2 fold.zero=1 train.offload=moments,masters train.update=host
- 2 fp64 apart fold.ep=2 route.clones=1 route.dispatcher=peer axes.hidden=64 axes.heads=2
- 4 bf16 apart fold.dp=2 fold.tp=2 fold.ep=4 route.clones=2 route.dispatcher=alltoall
- 2 fp8 apart fold.ep=2 route.clones=1 precision.place=all axes.hidden=16 axes.ffn=16
- 2 fp64 hash fold.ep=2 route.factor=1.2 train.offload=moments train.update=host axes.seq=16 axes.hidden=16 axes.ffn=16 axes.heads=2 axes.vocab=16 train.batch=8
- 2 fp64 apart fold.pp=2 train.offload=activations,moments train.update=host
- 2 bf16 folds fold.ep=2 route.clones=1 route.factor=1.9 route.stash=1.1 train.recompute=0 axes.batch=8 axes.seq=16 axes.heads=2 train.batch=32
- 2 fp64 apart fold.pp=2 fold.vpp=2 fold.schedule=interleaved
+ 4 fp64 apart fold.pp=2 fold.tp=2 fold.ep=2 fold.zero=2 fold.schedule=zerobubble fold.overlap=1
- 4 bf16 apart fold.dp=2 fold.tp=2 fold.ep=4 train.recompute=1e12
- 4 fp64 apart fold.dp=2 fold.tp=2 fold.ep=4 route.factor=0.6 route.dispatcher=alltoall train.recompute=1e12
+ 4 fp64 apart fold.dp=2 fold.tp=2 fold.ep=4 route.factor=0.6 route.dispatcher=peer fold.overlap=1 axes.hidden=64 axes.heads=2 train.batch=2
- 4 bf16 apart fold.dp=4 fold.ep=2 fold.etp=2 route.dispatcher=alltoall
- 4 bf16 apart fold.dp=4 fold.ep=2 fold.etp=2 route.dispatcher=peer
- 4 fp64 apart fold.dp=2 fold.tp=2 fold.ep=4 route.factor=0.6
- 2 fp64 biases fold.ep=2 train.batch=8 axes.seq=16 axes.hidden=16 axes.ffn=16 axes.heads=2 axes.vocab=16
- 2 fp64 apart fold.tp=2
- 2 fp64 apart fold.dp=2 fold.zero=3 fold.overlap=1 train.recompute=1e12
- 2 fp64 apart fold.cp=2
- 2 fp64 apart fold.pp=2
- 2 bf16 apart fold.pp=2
- 2 bf16 apart fold.ep=2 precision.grads=bf16 train.batch=2 axes.batch=1 axes.hidden=16 axes.ffn=16
- 1 bf16 apart train.skip_bad=0 train.clip=0 train.batch=2 axes.batch=2 axes.hidden=144 axes.ffn=16 axes.heads=2
- 2 bf16 apart fold.pp=2 train.skip_bad=0 train.clip=0
- 2 bf16 apart fold.ep=2 fold.tp=2 train.skip_bad=0 route.policy=padded route.factor=2 train.clip=0 axes.batch=4 axes.hidden=16 axes.ffn=16
- 2 fp64 hash fold.ep=2 train.skip_bad=0 route.factor=1.2 axes.seq=16 axes.hidden=16 axes.ffn=16 axes.heads=2 axes.vocab=16 train.batch=8
- 1 bf16 apart train.skip_bad=0 precision.grads=bf16 precision.moments=stochastic train.clip=0 axes.batch=4 axes.hidden=16 axes.ffn=16
- 1 fp8 apart precision.place=all precision.wgrad=all train.skip_bad=0 train.clip=0 axes.batch=2 train.batch=2 axes.hidden=144 axes.ffn=128 axes.seq=80 axes.heads=2
- 1 fp8 apart precision.place=all precision.primary=all precision.wgrad=all train.skip_bad=0 train.clip=0 axes.batch=2 train.batch=2 axes.hidden=144 axes.ffn=128 axes.seq=80 axes.heads=2
- 2 fp8 apart fold.ep=2 precision.place=all precision.primary=all precision.wgrad=none train.skip_bad=0 train.clip=0 axes.batch=2 train.batch=4 axes.hidden=144 axes.ffn=16 axes.seq=80 axes.heads=2
- 4 fp64 apart fold.pp=4
- 4 fp64 apart fold.pp=2 fold.dp=2 fold.ep=2 fold.vpp=2 fold.schedule=dualpipev
- 4 fp64 apart fold.dp=4 fold.ep=2 fold.etp=2 route.policy=padded route.factor=1
- 4 fp64 apart fold.dp=2 fold.tp=2 fold.ep=4 route.policy=capacity route.factor=0.75
- 4 fp64 apart fold.cp=2 fold.dp=2 fold.ep=4 route.policy=capacity route.factor=0.75 route.drop=position
- 4 bf16 apart fold.cp=2 fold.ring=1 fold.tp=2 fold.zero=3
- 4 fp64 zoo fold.cp=2 fold.tp=2
- 2 fp64 blocks fold.tp=2
- 1 bf16 blocks
+ 1 fp64 scaled precision.recipe=nvfp4 precision.place=all precision.watch=2 train.batch=2
- 4 fp64 apart fold.dp=2 fold.tp=2 fold.ep=4 route.factor=0.6 precision.recipe=blockwise precision.place=all precision.watch=2
- 2 fp8 apart fold.tp=2 precision.recipe=tensor precision.place=all
- 1 fp8 apart precision.place=all axes.hidden=16 axes.ffn=16
+ 1 fp8 apart precision.place=all precision.wgrad=all precision.kept=rounded axes.hidden=16 axes.ffn=128 axes.seq=80 train.batch=2 axes.heads=2
- 1 fp8 apart precision.place=all precision.wgrad=all axes.hidden=16 axes.ffn=128 axes.seq=80 train.batch=2 axes.heads=2
- 2 fp8 apart fold.ep=2 precision.place=all precision.wgrad=all axes.hidden=144 axes.ffn=16 axes.seq=80
- 2 fp64 apart fold.ep=2 precision.recipe=blockwise precision.place=all precision.wgrad=all axes.seq=80
- 2 fp8 apart fold.etp=2 precision.place=all precision.wgrad=all axes.hidden=16 axes.ffn=64 axes.seq=80 train.recompute=1e13
- 2 fp8 apart fold.pp=2 precision.place=all precision.wgrad=all axes.hidden=16 axes.ffn=16
- 1 fp8 apart precision.place=all axes.hidden=144 axes.heads=1 axes.dim=16 axes.ffn=16 axes.seq=80
- 2 fp8 apart precision.place=all axes.hidden=144 axes.heads=4 axes.dim=128 axes.ffn=16 fold.tp=2
- 1 fp8 scaled precision.place=all axes.hidden=208
- 1 fp8 top_p precision.place=all axes.hidden=144 axes.ffn=16
+ 2 fp8 apart fold.ep=2 precision.place=all precision.primary=all precision.wire=all route.dispatcher=alltoall axes.hidden=144 axes.ffn=16 train.batch=2 axes.expert=4 axes.heads=2
- 2 fp8 apart fold.ep=2 precision.place=all precision.wire=all route.dispatcher=peer axes.hidden=144 axes.ffn=16
- 2 fp8 apart fold.ep=2 precision.place=all precision.wire=all fold.overlap=1 train.batch=8 axes.hidden=16 axes.ffn=16
- 2 fp8 folds fold.ep=2 route.factor=1.9 route.stash=1.1 axes.batch=8 axes.seq=16 axes.heads=2 train.batch=32 axes.hidden=16 axes.ffn=16 precision.place=all precision.wire=all precision.kept=rounded
- 1 fp8 apart precision.place=all precision.kept=rounded axes.hidden=16 axes.ffn=16 train.batch=2
- 2 fp8 apart fold.ep=2 precision.place=all axes.hidden=16 axes.ffn=16 train.recompute=1e13
- 2 fp8 apart fold.etp=2 precision.place=all axes.hidden=16 axes.ffn=256
- 2 fp64 apart fold.ep=2 axes.expert=7 fold.pair=1 precision.recipe=mxfp8 precision.place=all train.batch=8
- 2 fp8 apart fold.pp=2 train.offload=activations,moments precision.place=all axes.hidden=16 axes.ffn=16
- 2 fp8 apart fold.dp=2 fold.zero=3 precision.place=all axes.hidden=16 axes.ffn=16
- 2 fp8 apart fold.dp=2 fold.zero=1 precision.place=all precision.primary=all axes.hidden=144 axes.ffn=48 axes.seq=80
- 2 fp8 apart fold.dp=2 fold.zero=3 precision.place=all precision.primary=all axes.hidden=144 axes.ffn=16
- 1 fp8 apart precision.place=all precision.primary=all precision.wgrad=all axes.hidden=128 axes.heads=1 axes.dim=128 axes.ffn=128 axes.seq=80 train.batch=2
- 2 fp8 apart fold.pp=2 train.offload=activations,moments,masters precision.place=all precision.primary=all axes.hidden=16 axes.ffn=16
- 2 fp8 apart fold.dp=2 fold.zero=1 train.offload=moments,masters train.update=host precision.place=all precision.primary=all axes.hidden=144 axes.ffn=16
+ 2 fp64 apart fold.ep=2 train.optimizer=muon train.batch=2
- 2 bf16 apart fold.ep=2 fold.zero=3 train.optimizer=muon
- 2 fp64 apart fold.dp=2 fold.zero=2 train.optimizer=lion train.batch=2
- 1 bf16 apart train.optimizer=lion precision.moments=stochastic
- 2 fp64 apart fold.ep=2 train.optimizer=adafactor train.batch=2
- 1 fp64 balance
- 1 fp64 dropout
- 1 fp64 expert_choice
- 1 fp64 hash
- 1 fp64 layers
- 1 fp64 linear
- 1 fp64 optimizer
- 1 fp64 router_choice
- 1 fp64 marks train.batch=2
- 1 fp64 router_hash
- 1 fp64 router_post
- 1 fp64 router_pre
- 1 fp64 router_sigmoid
- 1 fp64 router_top1
- 1 fp64 statistics
- 1 fp64 tied
- 1 fp64 top1_z
- 1 fp64 trip
- 1 fp64 window
- 1 fp64 zoo
- 1 fp64 ../hf/dsv3 train.recompute=full,layernorm
- 1 fp64 ../hf/dsv2
- 1 fp64 ../hf/qwen3 axes.vocab=99
- 1 fp64 ../hf/mixtral-aux route.policy=capacity route.factor=0.75
- 1 fp64 ../hf/mixtral-aux route.policy=padded route.factor=1
- 1 fp64 ../hf/mixtral-aux route.factor=0.3
END
}

cases >"$dir/cases"
while read -r when ranks type model keys; do
    case "$ranks $type $model $keys" in *"$1"*) ;; *) continue ;; esac
    # shellcheck disable=SC2086
    [ "$1$PLEAT_ALL" ] || [ "$when" = + ] || continue
    fold "$ranks" "$type" "$model" $keys </dev/null
done <"$dir/cases"
exit $bad
