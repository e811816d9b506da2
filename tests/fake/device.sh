#!/bin/sh
# device: unit/device_test on a GPU made of this processor (README.md): arenas,
# streams, events, graphs, instructions on several streams, in an order of what may
# run beside each other by chance; with PLEAT_ALL=1 as late as may be, too.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/fake/device
. tests/fake/libs
fake_start "$dir" || exit 2
export TEST_TARGET=cuda CMOCKA_MESSAGE_OUTPUT=TAP
for order in chance ${PLEAT_ALL:+late}; do
    on_gpu "order=$order" "$(dirname "$PLEAT")/tests/unit/device_test" 2>"$dir/log" |
        grep -E '^(not )?ok' || { echo "not ok - device: order $order"; cat "$dir/log"; }
done

# memory of two ranks on each of two machines, by name
if mpirun --version >/dev/null 2>&1; then
    test=$(dirname "$PLEAT")/tests/unit/device_test
    on_gpu "" timeout 120 mpirun -n 4 tests/onhost 2 "$test" >"$dir/log" 2>&1
    if [ "$(grep -c '^ok .* peers' "$dir/log")" = 4 ]; then
        echo "ok - device: peers under mpirun"
    else
        echo "not ok - device: peers under mpirun"
        sed 's/^/# /' "$dir/log"
    fi
fi
