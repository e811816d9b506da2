#!/bin/sh
# train: target=cuda trains models/tiny.lua, made small, on a GPU made of this
# processor (README.md). fp64 against target=host: only the order of sums
# differs, 1e-15 of a tensor's largest element, and 1e-12 shows any mistake.
# fp32 and bf16, with given experts, are held against fp64, as far from it as the
# host's run of that type is: 16 times in fp32, as a sum of the host's has 16
# lanes where a product here has one; 4 times in bf16, where operands' rounding
# decides. The same bits by graphs and by plain launches, in every order of what
# may run beside each other, stopped and resumed.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/fake/train
. tests/fake/libs
fake_start "$dir" || exit 2
bad=0
small="axes.batch=1 axes.seq=8 axes.hidden=16 axes.kv=2 axes.dim=8 axes.ffn=16
    axes.expert=4 train.batch=2 train.steps=2 train.log_every=1 train.eval_every=0
    train.eval_steps=1 data.train=LICENSE"

# result NAME STATUS [what was found]
result() {
    if [ "$2" = 0 ]; then echo "ok - cuda: $1${3:+: $3}"; return; fi
    echo "not ok - cuda: $1${3:+: $3}"
    sed 's/^/# /' "$dir/log" | tail -n 4 | cut -c 1-250
    bad=1
}

# run NAME SETTINGS key=value...: a run of the GPU
run() {
    name=$1 gpu=$2
    shift 2
    # shellcheck disable=SC2086
    on_gpu "$gpu" timeout 300 "$PLEAT" run models/tiny.lua $small target=cuda "$@" \
        name="$dir/$name" >"$dir/log" 2>&1
}
host() {
    name=$1
    shift
    # shellcheck disable=SC2086
    "$PLEAT" run models/tiny.lua $small target=host "$@" name="$dir/$name" >"$dir/log" 2>&1
}

# near NAME A B LIMIT: no tensor's largest difference is larger
near() {
    found=$(farthest "$dir/$2" "$dir/$3")
    echo "$found" | awk -v l="$4" '{ exit !($1 != "inf" && $1 <= l) }'
    result "$1" $? "$found, at most $4"
}

# same NAME A B: the bits of two runs
same() {
    differ=
    for f in model optim; do
        cmp "$dir/$2/ckpt/step-00000002/$f.safetensors" \
            "$dir/$3/ckpt/step-00000002/$f.safetensors" >>"$dir/log" 2>&1 || differ=1
    done
    [ ! "$differ" ]
    result "$1" $?
}

host host64 precision=fp64 && run fp64 "" precision=fp64 && near fp64 fp64 host64 1e-12 ||
    result "fp64 runs" 1
loads() { grep -o 'expert_loads": [^]]*' "$dir/$1/metrics.jsonl"; }
[ "$(loads fp64 | wc -l)" = 3 ] && [ "$(loads fp64)" = "$(loads host64)" ]
result "the load of each expert comes back from the GPU" $?
host exact precision=fp64 route.balance=forced
for how in fp32:16 bf16:4; do
    type=${how%:*}
    host host.$type precision=$type route.balance=forced &&
        run $type "" precision=$type route.balance=forced &&
        near $type $type exact "$(farthest "$dir/host.$type" "$dir/exact" |
            awk -v k="${how#*:}" '{ print k * $1 }')" || result "$type runs" 1
done

(export PLEAT_NOGRAPH=1 && run plain "order=late" precision=bf16 route.balance=forced)
same "the same bits without graphs, as late as may be" bf16 plain
(export PLEAT_NODES=50 && run rows "order=early" precision=bf16 route.balance=forced)
same "a graph a row, at once" bf16 rows
run turns "seed=7" precision=bf16 route.balance=forced
same "another order of what runs beside each other" bf16 turns
run parts "" precision=bf16 route.balance=forced train.steps=1 &&
    run parts "seed=3" precision=bf16 route.balance=forced resume=1
same "stopped and resumed" bf16 parts
run hosted "order=early" precision=bf16 route.balance=forced train.steps=1 train.offload=moments,masters train.update=device &&
    run hosted "order=late" precision=bf16 route.balance=forced resume=1
same "masters and moments in the host's memory" bf16 hosted
run there "order=early" precision=bf16 route.balance=forced train.steps=1 train.offload=moments,masters train.update=host &&
    run there "order=late" precision=bf16 route.balance=forced resume=1
same "masters and moments updated there" bf16 there
(export PLEAT_NODES=10 && run dealt "seed=9" precision=bf16 route.balance=forced train.offload=moments,masters cluster.cores=6e10 cluster.launch=1e-9)
same "some there, some on the GPU" bf16 dealt
exit $bad
