#!/bin/sh
# wide: how the GPU's kernels of published models reach memory. Neighbours that a
# thread has are read and written in pieces; no norm reads its rows twice, no
# gradient of experts is read for its norm.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=build/tests/wide
mkdir -p $dir || exit 2
bad=0

# check NAME [what is wrong, a line each]
check() {
    if [ -z "$2" ]; then echo "ok - wide: $1"; return; fi
    echo "not ok - wide: $1"
    printf '%s\n' "$2" | head -n 10 | sed 's/^/# /'
    bad=1
}

# text LABEL: the text of the instruction's kernel
text() {
    name=$(awk -v l="$1" '$1 == "sig" { name[n++] = $2 }
        $1 == "kernel" && $2 == l {
            match($0, / sig=[0-9]+/)
            print name[substr($0, RSTART + 5, RLENGTH - 5)]
            exit
        }' $plan)
    [ -n "$name" ] || echo "no instruction $1"
    awk -v n="$name" '/^kernel k_[0-9a-f]* [0-9]*$/ { on = $2 == n } on' $plan
}

for model in qwen3_moe mixtral; do
    plan=$dir/$model.plan
    "$PLEAT" compile models/$model.lua target=cuda axes.batch=2 train.batch=2 \
        precision=bf16 train.recompute=0 -d fuse -o $plan >$dir/fuse || { cat $dir/fuse; exit 1; }
    check "$model: bf16 neighbours come in pieces" "$(grep -nE \
        'LANES\([0-9]+\) t[0-9]+\[l\] = bf16_f32\(b[0-9]+\[[^t]*\]\);' $plan)"
    check "$model: a weight's update reads and writes 16 bytes" "$(
        text post.layers.0.moe.w1.write | awk '
            / load<4, 4>/ { r++ } / store<4, 4>/ { w++ }
            END { if (r < 4 || w < 4) print r + 0 " reads, " w + 0 " writes" }')"
    check "$model: squares of a gradient by its product" "$(awk '
        /  *= gmm_wgrad .* sum_sq / { made++ }
        /reads.* %grad\.layers\.[^ ]*\.moe\.w[123] / && !/ write / { print }
        END { if (made < 3) print made + 0 " products" }' $dir/fuse)"
    for step in layers.0.add.2 d.layers.0.attn_norm.rmsnorm.mul.2; do
        check "$model: $step holds its row" "$(text $step | awk '
            / team_sum</ { s++ } /for .* = lane/ { print }
            END { if (!s) print "no sum of a team" }')"
    done
done
exit $bad
