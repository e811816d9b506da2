#!/bin/sh
# exchange.sh [GPUS]: tokens to expert rows and back, by NCCL's all-to-all of
# packed blocks and by kernels that write to peers' memory, in turns in one run
# on the same GPUs (2): one layer of Qwen3's widths, TOKENS tokens (16384) on all
# of them, learned routing of made-up tokens, nothing beside an exchange, rank 0's
# clock around every instruction, without what it waits for the other ranks.
# Medians of ROUNDS (3).
#
#   ms     of all that moves rows forward: gather, exchange, expansion to experts'
#          rows; their sum over choices, exchange, sum at home with what adds it
#   GB/s   of an exchange: each way, of what goes to other GPUs
#
# Plans are made where DIR (build/bench/exchange) lacks them: PLANS=1 only makes
# them. Then PLEAT may be build/pleat-run. CARRIERS names what is measured: of
# others than these two (kernels of other sizes, say) plans must lie in DIR, as
# CARRIER-GPUS-TOKENS.plan.
cd "$(dirname "$0")/../.." || exit 2
gpus=${1:-2} dir=${DIR:-build/bench/exchange}
: "${PLEAT:=build/pleat}" "${ROUNDS:=3}" "${TOKENS:=16384}" "${CARRIERS:=alltoall peer}"
export NCCL_NVLS_ENABLE=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p "$dir" || exit 2

for carrier in alltoall peer; do
    plan=$dir/$carrier-$gpus-$TOKENS.plan
    [ -f "$plan" ] && continue
    sed 's/^local layers, eps = [0-9]*/local layers, eps = 1/' \
        "${MODEL:-models/qwen3_moe.lua}" >"$dir/model.lua"
    # shellcheck disable=SC2086
    "$PLEAT" compile "$dir/model.lua" target=cuda train.clip=0 world="$gpus" \
        fold.ep="$gpus" fold.overlap=0 axes.batch=$((TOKENS / 4096 / gpus)) axes.seq=4096 \
        train.batch=$((TOKENS / 4096)) route.factor=1.25 $KEYS \
        route.dispatcher=$carrier -o "$plan" >"$dir/log" 2>&1 ||
        { cat "$dir/log"; exit 1; }
done
[ "$PLANS" ] && exit 0

# lines FILE: name, ms and GB/s of what moves rows of the forward pass; what
# has less than a sixteenth of the most bytes, and is no exchange of rows, is of
# the router
lines() {
    awk '/farthest from the plan/ { exit }
        / layers\.\*\.(moe\.(dispatch|alltoall|combine|sum)|add\.)/ {
            name[++n] = $9 " " $10; ms[n] = $1; rate[n] = $5; b = $1 * $5
            if (b > most) most = b
        }
        END {
            for (i = 1; i <= n; i++)
                if (ms[i] * rate[i] >= most / 16 || name[i] ~ /rows:/)
                    print name[i], ms[i], rate[i]
        }' "$1"
}

round=0
while [ $((round += 1)) -le "$ROUNDS" ]; do
    for carrier in $CARRIERS; do
        PLEAT_LINES=1000 mpirun -np "$gpus" --bind-to none "$PLEAT" bench \
            "$dir/$carrier-$gpus-$TOKENS.plan" >"$dir/out" 2>&1 || tail -n 3 "$dir/out"
        lines "$dir/out" >"$dir/$carrier.$round"
        awk -v c=$carrier '{ ms += $3 } END { print c, ms }' "$dir/$carrier.$round" \
            >>"$dir/sums.$round"
    done
done
for carrier in $CARRIERS; do
    cat "$dir/$carrier".[0-9]* | sort | awk -v c=$carrier '
        function flush() { if (k) printf "%-12s %-42s %8.3f ms %8.1f GB/s\n", c, key, v[int((k + 1) / 2)], r[int((k + 1) / 2)]; k = 0 }
        { if ($1 " " $2 != key) flush(); key = $1 " " $2; v[++k] = $3; r[k] = $4 }
        END { flush() }'
    cat "$dir"/sums.* | awk -v c=$carrier '$1 == c { print $2 }' | sort -g |
        awk -v c=$carrier '{ v[NR] = $1 } END { printf "%-12s all %.3f ms\n", c, v[int((NR + 1) / 2)] }'
done
cat "$dir"/sums.* | sort | awk '
    { v[$1, ++n[$1]] = $2 }
    function median(c) { return v[c, int((n[c] + 1) / 2)] }
    END { for (c in n)
              if (c != "alltoall" && median("alltoall") > 0)
                  printf "%s is %.3f of alltoall\n", c, median(c) / median("alltoall") }'
rm -f "$dir"/sums.* "$dir"/*.[0-9] "$dir/out"
