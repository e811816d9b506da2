#!/bin/sh
# published: what a plan keeps of DeepSeek-V3 against the numbers published for
# Megatron-Core: TP1 PP4 VPP4 EP64 on 256 ranks, 16 layers
# with experts on each stage; a stage between the first and the last. Terms, in
# elements of one layer (all are whole on a rank but experts, cut over 64):
#
#     attn    the products of latent attention and its two norms
#     shared  the shared expert
#     norms   two of the layer     not in the published count, which has 6 B for
#     router  hidden x experts     231.147 M = attn + shared
#     expert  256 experts
#
# bf16 weights 2 B, fp32 gradients 4 B; fp32 masters and both moments 12 B, of
# what is not an expert cut over the 64 ranks that share it, of experts over 1.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/published
rm -rf "$dir" && mkdir -p "$dir" || exit 2
bad=0

# all layers have experts, so nothing is named ffn; no further token is predicted
sed -e 's/= 61, 3, 1e-6/= 64, 0, 1e-6/' -e 's/^local mtp, mtp_weight = 1/local mtp, mtp_weight = 0/' \
    -e '/layers.{i}.ffn.w/d' \
    models/deepseek_v3.lua >"$dir/model.lua"
if ! "$PLEAT" compile "$dir/model.lua" -o "$dir/m.plan" target=null world=256 \
    train.batch=1024 train.recompute=0 fold.pp=4 fold.vpp=4 fold.ep=64 fold.schedule=interleaved \
    'fold.layout=Etttt|(tttt|)*14ttttL' >"$dir/log" 2>&1 ||
    ! "$PLEAT" show "$dir/m.plan" --memory >"$dir/memory" 2>>"$dir/log"; then
    echo "not ok - published: DeepSeek-V3 on 256 ranks"
    sed 's/^/# /' "$dir/log"
    exit 1
fi

# bytes STAGE: of weights, gradients, optimizer
bytes() {
    awk -F'\t' -v stage="$1" '$1 != stage { next }
        $4 == "param" { w += $3 }
        $4 == "temp" && $6 == "step" && $9 ~ /^grad\./ { g += $3 }
        $4 == "optim" { o += $3 }
        END { printf "%.0f %.0f %.0f\n", w, g, o }' "$dir/memory"
}

# is WHAT GOT WANT
is() {
    if [ "$2" = "$3" ]; then
        echo "ok - published: $1: $2"
    else
        echo "not ok - published: $1: $2, not $3"
        bad=1
    fi
}

# MLA: query through 1536, keys and values through 512, 128 heads of 128 (+ 64
# turned), 7168 wide
attn=$((7168 * 1536 + 1536 + 1536 * 128 * (128 + 64) +
        7168 * 512 + 512 + 7168 * 64 + 512 * 128 * (128 + 128) +
        128 * 128 * 7168))
shared=$((3 * 7168 * 2048)) norms=$((2 * 7168)) router=$((7168 * 256))
expert=$((3 * 7168 * 2048 * 256))
dense=$((16 * (attn + shared + norms + router))) held=$((16 * expert / 64))

for stage in 1 2; do
    # shellcheck disable=SC2046
    set -- $(bytes $stage)
    is "stage $stage, weights" "$1" $((2 * (dense + held)))
    is "stage $stage, gradients" "$2" $((4 * (dense + held)))
    is "stage $stage, masters and moments" "$3" $((12 * (dense / 64 + held)))
done

# The published figures come from the same terms without norms and router.
counted=$((16 * (attn + shared)))
calc() { awk "BEGIN { printf \"%.$2f\", $1 }"; }
is "dense part of a layer, thousands" $((counted / 16 / 1000)) 231147
is "experts of a layer, M" "$(calc "$expert / 1e6" 2)" 11274.29
is "weights and gradients, GiB" \
    "$(calc "6 * ($counted + $held) / 1073741824" 2)" 36.42
is "masters and moments, GiB" \
    "$(calc "12 * ($counted / 64 + $held) / 1073741824" 2)" 32.15
is "what the plan has beyond them, bytes" \
    $(($1 + $2 - 6 * (counted + held))) $((6 * 16 * (norms + router)))
echo 1..11
exit $bad
