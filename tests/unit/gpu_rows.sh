#!/bin/sh
# gpu_rows: what tests/gpu/rows_test.c compares on a GPU can be made without one:
# its graphs, and the texts of some of its kernels.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
n=$("${PLEAT%/*}/tests/gpu/rows_test" -t "attention tiny" | grep -c __global__)
[ "$n" -ge 9 ] || printf 'not '
echo "ok - gpu rows: texts of $n kernels"
