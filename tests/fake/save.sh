#!/bin/sh
# save: checkpoints that a GPU copies beside its step have the bytes of those
# that training waits for, by one graph, by a graph a row, by plain launches, in
# every order of what runs beside each other (README.md). Each of three steps is
# saved while the next one runs.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/fake/save
. tests/fake/libs
fake_start "$dir" || exit 2
bad=0

# saves NAME SETTINGS [key=value ...]: to $dir/NAME, every step
saves() {
    name=$1 settings=$2
    shift 2
    on_gpu "$settings" "$PLEAT" run models/tiny.lua target=cuda axes.batch=1 axes.seq=8 axes.hidden=16 axes.kv=2 axes.dim=8 axes.ffn=16 train.batch=2 precision=fp64 \
        train.steps=3 train.save_every=1 train.keep=0 data.train=LICENSE data.valid= \
        name="$dir/$name" "$@" >"$dir/log" 2>&1
}

# same NAME SETTINGS [key=value ...]: as those of the run that waits
same() {
    saves "$@" && grep -q "written beside training" "$dir/log"
    ok=$?
    for s in 1 2 3; do
        for f in model.safetensors optim.safetensors; do
            cmp -s "$dir/waits/ckpt/step-0000000$s/$f" "$dir/$1/ckpt/step-0000000$s/$f" ||
                { ok=1; echo "step $s: $f" >>"$dir/log"; }
        done
    done
    if [ $ok = 0 ]; then echo "ok - cuda save: $1"; return; fi
    echo "not ok - cuda save: $1"
    tail -n 5 "$dir/log" | cut -c 1-300 | sed 's/^/# /'
    bad=1
}

echo "1..8"
saves waits order=early train.snapshot=0 && grep -q "training waits for each" "$dir/log" ||
    { echo "not ok - cuda save: one that waits"; sed 's/^/# /' "$dir/log"; exit 1; }
echo "ok - cuda save: one that waits"
same late "order=late copies=late"
same early "order=early copies=late"
same chance "seed=5 copies=late"
same offloads "seed=6 copies=late" train.offload=moments,masters
same updates "seed=8 copies=late" train.offload=moments,masters train.update=host
(export PLEAT_NODES=10; same rows "copies=late"; exit $bad) || bad=1
(export PLEAT_NOGRAPH=1; same launches "copies=late"; exit $bad) || bad=1
exit $bad
