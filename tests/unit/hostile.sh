#!/bin/sh
# hostile: inputs and signals that made a run hang, abort or use other numbers:
# FIFOs and devices as inputs, links out of a model's folder, control characters
# in texts, NaN in weights, a hangup of the terminal.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/hostile models=$PWD/models
rm -rf "$dir" && mkdir -p "$dir" && tar -xzf tests/data/runs/format1.tar.gz -C "$dir" || exit 2
cd "$dir" || exit 2
bad=0

result() {
    if [ "$2" = 0 ]; then echo "ok - hostile: $1"; return; fi
    echo "not ok - hostile: $1"
    tail -n 12 said | cat -v | sed 's/^/# /'
    bad=1
}

# refused NAME TEXT command...: status 1 in limited time, TEXT, no control character
refused() {
    name=$1 text=$2
    shift 2
    timeout 20 "$PLEAT" "$@" >said 2>&1
    [ $? = 1 ] && grep -q -- "$text" said && ! grep -q "$(printf '[\001-\010\013-\037\177]')" said
    result "$name" $?
}

# ---- inputs ------------------------------------------------------------------

mkfifo fifo fifo.lua fifo.safetensors
no="it is a device or a pipe"
refused "check of a FIFO" "fifo: $no" check fifo
refused "check of a device" "/dev/zero: $no" check /dev/zero
refused "show of a FIFO" "fifo: $no" show fifo
refused "a machine in a FIFO" "fifo: $no" check small.lua cluster=fifo
refused "data in a FIFO" "fifo cannot be read: $no" run small.lua target=host data.train=fifo name=x
refused "data in a folder of FIFOs" "$no" data inspect fifo
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 5\n' 0 >lfs.safetensors
refused "weights that Git LFS has" "lfs.safetensors: is a pointer of Git LFS: git lfs pull" \
    run small.lua target=host from=lfs.safetensors name=x
refused "weights in a FIFO" "fifo.safetensors: $no" run small.lua target=host from=fifo.safetensors name=x
sed '1i local none = require "fifo"' small.lua >takes.lua
refused "a module in a FIFO" "fifo.lua: $no" check takes.lua
mkdir -p inside/part && cp small.lua shape.lua inside && sed 's/"fifo"/"part.other"/' takes.lua >inside/takes.lua
echo 'return {}' >out.lua && ln -s ../../out.lua inside/part/other.lua
refused "a module behind a link out of the folder" "is a link out of the model's folder" check inside/takes.lua
echo 'return {}' >inside/real.lua && ln -sf ../real.lua inside/part/other.lua
"$PLEAT" check inside/takes.lua >said 2>&1
result "a link within the folder" $?
printf 'chip h200\nfoo 3 measured 1e9\n' >odd.machine
refused "an unknown row of a machine with a size" "odd.machine:2: error: unknown key 'cluster.foo'" check small.lua cluster=odd.machine
refused "hosts that do not divide the ranks" "fold.host=3 does not divide 8 ranks" show --fold small.lua world=8 fold.host=3

# ---- control characters --------------------------------------------------------

esc=$(printf '\033[31m') nel=$(printf '\302\205')
for text in "axis('a${esc}b', 4)" "error('x${esc}y')" "param('w$esc', 'hidden')" "print('p$esc$nel')  nothing()"; do
    sed "1i $text" small.lua >shown.lua
    timeout 20 "$PLEAT" check shown.lua >said 2>&1
    ! grep -q "$(printf '[\001-\010\013-\037\177]')" said && grep -q '\\x1b' said && ! grep -q "$nel" said
    result "no escape of a model reaches the terminal: ${text%%(*}" $?
done
refused "an escape in a name of the command line" '\\x1b' check "none$esc.lua"

# ---- checkpoints ---------------------------------------------------------------

"$PLEAT" run small.lua target=host train.steps=2 name=runs/a >said 2>&1
result "a run" $?
"$PLEAT" generate runs/a -n 60 --temperature 50 --prompt "$esc" >shown 2>said &&
    ! grep -aq "$(printf '[\001-\010\013-\037\177]')" shown && grep -aq '\\x1b' shown &&
    "$PLEAT" generate runs/a -n 60 --temperature 50 --prompt "$esc" --raw >raw 2>said && grep -aqF "$esc" raw
result "generated text shows control characters, with --raw they are there" $?
# ---- weights -------------------------------------------------------------------

weights=runs/a/ckpt/step-00000002/model.safetensors
cp $weights nan.safetensors && printf '\377\377\377\377' | dd of=nan.safetensors bs=1 conv=notrunc \
    seek=$(($(wc -c <nan.safetensors) - 4)) 2>said
refused "NaN in weights" "the values of '.*' in nan.safetensors include NaN" run small.lua target=host from=nan.safetensors name=x

# ---- signals -------------------------------------------------------------------

# stops NAME SIGNAL WRAPPER: a run that gets it saves, ends with 4 and goes on
stops() {
    rm -rf runs/c
    $3 "$PLEAT" run small.lua target=host train.steps=100000 train.log_every=100000 name=runs/c >said 2>&1 &
    for i in $(seq 100); do [ -s runs/c/metrics.jsonl ] && break; sleep .1; done
    kill -"$2" $!
    wait $!
    [ $? = 4 ] && ls runs/c/ckpt | grep -q '^step-'
    result "$1" $?
}
stops "a hangup saves" HUP
exit $bad
