#!/bin/sh
# What -x writes after a pass is compiled on from there to the same plan bytes.
# PLEAT is the binary; the model's own keys, one fold of 4 ranks in bf16,
# shards that forward reads too, and stages whose backward is split.
cd "$(dirname "$0")/../.." || exit 2
pleat=${PLEAT:-build/pleat}
tmp=$(mktemp -d) || exit 2
trap 'rm -rf "$tmp"' EXIT
graphs=$($pleat help passes | sed 's/ .*//; /^streams$/,$d')   # passes that leave a graph

stages() {
    $pleat compile "$@" -o "$tmp/whole.plan" >/dev/null ||
        { echo "not ok - stages: $*"; return; }
    for pass in $graphs; do
        $pleat compile "$@" -x $pass >"$tmp/stage.ir" &&
            $pleat compile "$tmp/stage.ir" -o "$tmp/parts.plan" >/dev/null &&
            cmp "$tmp/whole.plan" "$tmp/parts.plan" ||
            { echo "not ok - stages: $* from $pass"; return; }
    done
    echo "ok - stages: $*"
}

stages models/tiny.lua
stages models/tiny.lua world=4 fold.tp=2 fold.ep=2 precision=bf16
stages models/tiny.lua world=2 fold.zero=3 train.batch=16
stages tests/models/expert_choice.lua
stages tests/models/tied.lua fold.pp=2 fold.schedule=zerobubble train.batch=8
stages tests/models/cuts.lua world=2 fold.tp=2

# Numbers of kernels that were changed by hand: one line says what cannot be.
refused() {
    says=$2
    sed "$1" "$tmp/fused.ir" >"$tmp/edited.ir"
    if $pleat compile "$tmp/edited.ir" -o "$tmp/parts.plan" >"$tmp/said" 2>&1 ||
        ! head -n 1 "$tmp/said" | grep -q "error: .*$says"
    then echo "not ok - stages: a kernel is refused: $says"; head -n 3 "$tmp/said" | sed 's/^/# /'
    else echo "ok - stages: a kernel is refused: $says"; fi
}

$pleat compile models/tiny.lua -x fuse >"$tmp/fused.ir"
refused 's/ after fuse / after fuze /' "is after 'fuze', which is no pass"
move() { # a node of the step into the kernel of another
    number=$(sed -n "s/^ *%$2  *=.* kernel=\([0-9]*\) .*/\1/p" "$tmp/fused.ir" | head -n 1)
    printf '%s\n' "0,/%$1  *=.* kernel=/s/^\( *%$1  *=.* kernel=\)[0-9]*/\1$number/"
}
refused "$(move layers.0.attn.wq.2 layers.0.attn_norm.rmsnorm.mul)" "attn.wq.2 .* is no loop"
refused "$(move layers.0.add layers.0.attn.wo.2)" "takes in only what adds it up"
refused "$(move layers.0.moe.mul.2 layers.0.moe.softmax.max)" "no slowest axes in common"
