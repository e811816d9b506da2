#!/bin/sh
# narrow: bytes of FP8 (1x128, scales in fp32) beside bf16's. Rows of experts that
# ranks send each other: what goes beside them, choices and their weights, is the
# same for each hidden, so it is what twice that adds. What stage 1 of DeepSeek-V3
# holds on 1,024 ranks, nothing rebuilt that takes time: of a micro-batch for its
# backward, parameters, and weights that are rounded once a step.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT

line() {
    awk -v name="$1" -v a="$2" -v b="$3" -v goal="$4" 'BEGIN { printf "  %-64s %6.3f  %s\n", name, a / b, goal }'
}
compiled() {
    "$PLEAT" compile "$@" target=null >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 2; }
}

# transfers HIDDEN WIRE: bytes of each all-to-all of a step, in order
transfers() {
    compiled tests/hf/mixtral-aux.lua precision=fp8 precision.place=all precision.wire="$2" axes.hidden="$1" \
        world=2 fold.ep=2 train.batch=4 route.dispatcher=alltoall -o "$dir/w.plan"
    "$PLEAT" show "$dir/w.plan" --trace "$dir/trace" >/dev/null
    awk '{ tid = $0; sub(/.*"tid":/, "", tid); sub(/,.*/, "", tid) }
        /"thread_name","args":{"name":"step / { step[tid] = 1 }
        /"cat":"alltoall"/ && step[tid] {
            sub(/.*"name":"/, ""); name = $0; sub(/".*/, "", name); sub(/.*"bytes":/, ""); print name, $0 + 0 }' "$dir/trace"
}
# rows WIRE: what these have of rows, a line each
rows() {
    transfers 2048 "$1" >"$dir/wide"
    transfers 1024 "$1" >"$dir/thin"
    paste -d ' ' "$dir/wide" "$dir/thin" | awk '$2 != $4 { print $2 - $4 }'
}
rows none >"$dir/bf16"
rows all >"$dir/fp8"
sum() { awk '{ s += $1 } END { print s }' "$1"; }
one=$(head -n 1 "$dir/bf16")
grep -vx "$one" "$dir/fp8" >"$dir/narrow"
line "a transfer in e4m3, numbers and scales" "$(sum "$dir/narrow")" \
    "$(($(sum "$dir/bf16") / 2))" "of bf16's bytes, goal 0.52"
line "all four of a layer, to experts in e4m3, back in bf16" "$(sum "$dir/fp8")" "$(sum "$dir/bf16")" "goal 0.76"

# held NAME keys...: GiB kept of a micro-batch, of parameters, of rounded weights
held() {
    compiled models/deepseek_v3.lua world=1024 fold.pp=16 fold.ep=64 train.batch=1024 memory=9999GiB \
        train.recompute=0 -o "$dir/v3.plan" "$@"
    "$PLEAT" show "$dir/v3.plan" >"$dir/show"
    kept=$(awk '$1 == "stage" { stage = $2 } $1 == "program" { program = $2 }
        stage == 1 && program == "step" && $1 == "frames" { print $2 }' "$dir/show")
    "$PLEAT" show "$dir/v3.plan" --memory >"$dir/memory"
    # shellcheck disable=SC2046
    set -- $(awk -F '\t' '$1 != 1 { next }
        $4 == "param" { param += $3 }
        $4 == "temp" && $6 == "step" && $5 == "e4m3" { n++; bytes[n] = $3; born[n] = $7; dies[n] = $8 }
        $6 == "step" && $8 > last { last = $8 }
        $4 == "temp" && $6 == "step" && $11 > 0 && (!body || $7 < body) { body = $7 }
        END { for (i in bytes) if (born[i] < body) rounded += bytes[i]
              print param / 2 ^ 30, rounded / 2 ^ 30 }' "$dir/memory")
    weights=$1 rounded=$2
}
held precision=bf16
bf16=$kept params=$weights
for keys in "" "precision.wire=all" "precision.wire=all precision.kept=rounded" \
    "precision.wire=all precision.kept=rounded precision.place=all"; do
    # shellcheck disable=SC2086
    held precision=fp8 $keys
    line "kept activations, precision=fp8 $keys" "$kept" "$bf16" "of bf16's $bf16 GiB, goal 0.78"
done
line "parameters" "$weights" "$params" "of bf16's"
line "weights rounded once a step, beside them" "$rounded" "$params" "of bf16's"
held precision=fp8 precision.primary=all
line "parameters, precision.primary=all" "$weights" "$params" "of bf16's, goal 0.52"
line "numbers in another layout for a step, beside them" "$rounded" "$params" "of bf16's"
