#!/bin/sh
# device: unit/device_test on a GPU made of this processor (README.md): arenas,
# streams, events, graphs, instructions on several streams, in two orders of what
# may run beside each other.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/fake/device
. tests/fake/libs
fake_start "$dir" || exit 2
export TEST_TARGET=cuda CMOCKA_MESSAGE_OUTPUT=TAP
for order in chance late; do
    on_gpu "order=$order" "$(dirname "$PLEAT")/tests/unit/device_test" 2>"$dir/log" |
        grep -E '^(not )?ok' || { echo "not ok - device: order $order"; cat "$dir/log"; }
done
