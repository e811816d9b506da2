#!/bin/sh
# offload: what may wait in the host's memory is one more choice: with a link to
# it, slow or fast, no plan is predicted slower than without, and one that fits
# without fits; nor is any slower in more memory. Updates dealt out between device
# and host take less time than all in one place, whatever the host is worth.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/offload
rm -rf "$dir" && mkdir -p "$dir" || exit 2
sed 's/^local layers, eps = 16/local layers, eps = 3/' models/olmoe.lua >"$dir/olmoe.lua"
sed 's/^local layers, dense_layers, eps = [0-9]*/local layers, dense_layers, eps = 3/' \
    models/deepseek_v2_lite.lua >"$dir/deepseek.lua"
sed 's/ eps = 3/ eps = 6/' "$dir/deepseek.lua" >"$dir/deepseek6.lua"
cp models/tiny.lua "$dir" && cd "$dir" || exit 2
bad=0

# price KEYS..: ms of a step of the model; 1e9: it does not fit
price() {
    "$PLEAT" compile "$model.lua" target=null -o plan "$@" >said 2>&1 || { echo 1e9; return; }
    "$PLEAT" show plan | sed -n '/^program step /{s/.*predicted \([0-9.]*\) ms.*/\1/p;q;}'
}

# falls MODEL BATCH MICRO MEMORY..: a line each: memory, ms by links 0, 1e9, 5e10
falls() {
    model=$1 batch=$2 micro=$3 && shift 3
    for memory; do
        for link in 0 1e9 5e10; do
            price train.batch="$batch" axes.batch="$micro" memory="$memory" cluster.offload=$link
        done | xargs echo "$memory"
    done >prices
    awk '{ for (i = 3; i <= 4; i++) if ($i > $2) bad = 1
           for (i = 2; i <= 4; i++) { if (NR > 1 && $i > last[i]) bad = 1; last[i] = $i }
           fits += $2 < 1e9; differ += $4 < $2 }
         END { exit bad || !fits || !differ }' prices
    if [ $? = 0 ]; then echo "ok - offload: $model: never slower, often faster"; else
        echo "not ok - offload: $model: memory, ms by links 0, 1e9, 5e10" && bad=1
        sed 's/^/# /' prices
    fi
}

# deals MODEL: ms with updates on the device, on the host, dealt out
deals() {
    model=$1
    for cores in 1e10 4e10 8e10 2e11 1e12; do
        for update in device host auto; do
            price train.batch=8 axes.batch=2 train.offload=moments,masters train.update=$update \
                cluster.cores=$cores cluster.dram=4e12
        done | xargs echo "$cores"
    done >prices
    awk '{ least = $2 < $3 ? $2 : $3; if ($4 > least) bad = 1; less += $4 < 0.98 * least }
         END { exit bad || less < 3 }' prices
    if [ $? = 0 ]; then echo "ok - offload: $model: updates where they take least"; else
        echo "not ok - offload: $model: bytes/s of the host, ms on device, host, dealt out" && bad=1
        sed 's/^/# /' prices
    fi
}

falls tiny 64 16 60MiB 64MiB 67MiB 72MiB
falls olmoe 16 4 28GiB 29.16GiB 29.58GiB 30.41GiB 31.25GiB
falls deepseek 16 4 31GiB 33GiB 33.8GiB 34.2GiB
falls deepseek6 16 4 57500MiB 58000MiB 70000MiB
deals olmoe
exit $bad
