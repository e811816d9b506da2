#!/bin/sh
# record: a run's folder tells everything: it goes on with nothing typed again and
# the same bits, says what changed, refuses what must not change and leaves the
# folder as it was, overwrites nothing, and folders of format 1 are read.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/record
rm -rf "$dir" && mkdir -p "$dir" && tar -xzf tests/data/runs/format1.tar.gz -C "$dir" || exit 2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1
cd "$dir" || exit 2
mv run format1
bad=0

# result NAME STATUS: ok when it is 0; else what was said
result() {
    if [ "$2" = 0 ]; then echo "ok - record: $1"; return; fi
    echo "not ok - record: $1"
    tail -n 12 said | sed 's/^/# /'
    bad=1
}

run() { "$PLEAT" run "$@" >said 2>&1; }

# refused NAME TEXT arguments...: status 1, one line that has TEXT, and every file
# of the folder (the first argument) stays as it was
refused() {
    name=$1 text=$2
    shift 2
    find "$1" -type f -exec cksum {} + | sort >before
    run "$@" resume=1
    got=$?
    find "$1" -type f -exec cksum {} + | sort >after
    [ $got = 1 ] && [ "$(wc -l <said)" = 1 ] && grep -q -- "$text" said && cmp -s before after
    result "refused: $name" $?
}

# same RUN RUN STEP: their checkpoints, to the byte
same() {
    for f in model optim; do
        cmp "$1/ckpt/step-0000000$3/$f.safetensors" "$2/ckpt/step-0000000$3/$f.safetensors" \
            >said 2>&1 || return 1
    done
}

# ---- what is in it -----------------------------------------------------------

run small.lua target=host train.steps=8 name=whole
result "a run of 8 steps" $?
run small.lua target=host train.steps=4 seed=0 train.eps=2e-8 train.eps=1e-8 name=runs/a
for f in config.lua plan machine data tuned metrics.jsonl model/small.lua model/shape.lua; do
    [ -s "runs/a/$f" ] || echo "no $f"
done >said
[ ! -s said ] && cmp -s small.lua runs/a/model/small.lua && cmp -s shape.lua runs/a/model/shape.lua
result "settings, plan, machine, data, model are there" $?
grep -q "^pleat  *[0-9.]* (commit " runs/a/machine && grep -q "^blas " runs/a/machine &&
    grep -q "^processor " runs/a/machine && grep -q "^train file 2000 all [0-9a-f]*  /" runs/a/data
result "machine: program, libraries, processor; data: size and hash" $?
cp runs/a/config.lua config.lua     # read by Lua itself: a model that requires it
cat >asks.lua <<'LUA'
axes { n=2 }
local c = require "config"
print(c["train.steps"], c["data.train"], c.defaults["train.clip"], c["hf.config"], c.format)
loss("l", sum(param("p", "n"), "n"))
LUA
"$PLEAT" check asks.lua >said 2>&1
grep -q '^4	../../text	1	{"model_type": "tiny", "names": \["a\\"b"\]}	2$' said
result "config.lua is Lua, quotes and defaults too" $?

# ---- hours ------------------------------------------------------------------------

run small.lua target=host train.steps=8 train.hours=1e-9 name=timed
[ $? = 4 ] &&
    [ "$(grep -c '^train.hours are over: stopped at step 1; resume=1 continues$' said)" = 1 ] &&
    "$PLEAT" ckpt verify timed >said 2>&1
result "train.hours: a run ends after a step, saved, and says so" $?
run timed resume=1
[ $? = 4 ] && grep -q '^train.hours are over: stopped at step 2;' said
result "train.hours: a resumed run counts anew" $?
run timed resume=1 train.hours=1000 && ! grep -q "are over" said && same whole timed 8
result "train.hours: it goes on to the same bits" $?

# ---- nothing is typed again -----------------------------------------------------

cp -r runs/a runs/first
run runs/a resume=1 train.steps=8 && grep -q "^train.steps 4 -> 8$" said && [ "$(grep -c -- '->' said)" = 1 ]
result "resume by the folder, what changed is said" $?
same whole runs/a 8
result "the same bits as a run that was not stopped" $?
cmp -s runs/first/config.lua runs/a/config.1.lua && cmp -s runs/first/plan runs/a/plan.1 &&
    cmp -s runs/first/plan runs/a/plan && [ ! -e runs/a/config.2.lua ]
result "what it said before is kept" $?
head -c "$(wc -c <runs/first/metrics.jsonl)" runs/a/metrics.jsonl | cmp -s - runs/first/metrics.jsonl &&
    [ "$(grep -c '"loss"' runs/a/metrics.jsonl)" = 8 ]
result "metrics.jsonl is appended to" $?
run runs/a resume=1 && [ ! -e runs/a/config.2.lua ] && [ "$(find runs/a -name 'data.*' -o -name 'machine.*')" = "" ]
result "nothing changed, nothing new" $?
run small.lua target=host train.steps=1 resume=1 name=asked && run asked
[ $? = 1 ] && grep -q "^error: asked holds checkpoints; resume=1 continues it" said
result "resume=1 of one start is not of the next" $?
mkdir elsewhere && cp -r runs/first elsewhere/b
cp -r elsewhere/b b && run b resume=1 train.steps=8
[ $? = 1 ] && grep -q "data.train: no file b/../../text" said
result "paths are relative to the folder" $?
cp text text.was
(cd elsewhere && "$PLEAT" run b/ resume=1 train.steps=8 data.train=../text.was) >said 2>&1 &&
    same whole elsewhere/b 8
result "data at another place, from another folder: the same bits" $?
run runs/a name=copy train.steps=4 && same runs/first copy 4
result "another run with the settings of one" $?
cp -r runs/first runs/byrun && "$PLEAT-run" runs/byrun resume=1 train.steps=8 >said 2>&1 && same whole runs/byrun 8
result "pleat-run continues it too" $?

# ---- what may change ----------------------------------------------------------------

cp -r runs/first runs/lr && run runs/lr resume=1 train.steps=6 train.lr=1e-3 train.clip=0.5 &&
    grep -q "^train.lr 0.01 -> 1e-3$" said && grep -q "^train.clip 1 -> 0.5$" said &&
    grep -q '"step": 6.*"lr": 0.001,' runs/lr/metrics.jsonl
result "a rate, and what is compiled in" $?
run runs/lr resume=1 train.steps=7 && grep -q '"step": 7.*"lr": 0.001,' runs/lr/metrics.jsonl
result "and it stays so" $?
cp -r runs/first runs/lion && run runs/lion resume=1 train.steps=6 train.optimizer=lion train.lr=0 &&
    grep -q "^train.optimizer adamw -> lion$" said && grep -q "another optimizer or train.freeze: weights are kept, [1-9][0-9]* states dropped: v$" said &&
    cmp -s runs/first/ckpt/step-00000004/model.safetensors runs/lion/ckpt/step-00000006/model.safetensors
result "another optimizer keeps the weights and says what it drops" $?
run runs/lion resume=1 train.steps=8 train.optimizer=adamw train.lr=0 && grep -q " 0 states dropped; without optim.v.[a-z.0-9]* all states begin at 0" said
result "an optimizer without its states begins anew" $?
cp -r runs/first runs/frozen && run runs/frozen resume=1 train.steps=6 train.freeze=w1,embed &&
    grep -q "^train.freeze (not set) -> w1,embed$" said && grep -q "weights are kept, [1-9][0-9]* states dropped: m v$" said &&
    ! "$PLEAT" ckpt diff runs/first runs/frozen >diff && grep -q "^w2 " diff && ! grep -q "^w1 \|^embed " diff
result "frozen parameters keep their bits, their moments are dropped" $?
run runs/frozen resume=1 train.steps=8 train.freeze= && grep -q "without optim.m.embed all states begin at 0" said
result "moments begin at 0 where parameters are no longer frozen" $?
run small.lua target=host train.optimizer=muon name=runs/muon && grep -q "^optimizer muon; adamw: embed gate norm.weight head$" said
result "says which parameters another optimizer updates" $?
head -c 2000 text | tr -c a a >alike # a sample is as another
run small.lua target=host data.train=alike train.optimizer=lion train.lr=0 train.steps=4 name=runs/late &&
    run runs/late resume=1 train.optimizer=adamw train.lr=1e-2 train.steps=6 &&
    run small.lua target=host data.train=alike train.lr=1e-2 train.steps=2 name=runs/early &&
    cmp runs/late/ckpt/step-00000006/model.safetensors runs/early/ckpt/step-00000002/model.safetensors >said 2>&1 &&
    cmp runs/late/ckpt/step-00000006/optim.safetensors runs/early/ckpt/step-00000002/optim.safetensors >said 2>&1
result "and corrects its moments by the steps since then" $?
cp -r runs/first runs/fold && run runs/fold resume=1 train.steps=8 world=2 fold.ep=2 axes.batch=4 &&
    grep -q "^world 1 -> 2$" said && grep -q "^fold.ep 1 -> 2$" said && grep -q "^axes.batch [0-9]* -> 4$" said
result "the fold and the micro-batch" $?
if mpirun --version >said 2>&1; then
    cp -r runs/first runs/two && mpirun -n 2 "$PLEAT" run runs/two resume=1 train.steps=8 >said 2>&1 &&
        grep -q "^world 1 -> 2$" said && mpirun -n 2 "$PLEAT" run runs/two resume=1 train.steps=9 >said 2>&1 &&
        run runs/two resume=1 train.steps=8 && "$PLEAT" ckpt verify runs/two >said 2>&1
    result "under mpirun, and in one process again" $?
else
    echo "ok - record: under mpirun # SKIP there is none"
fi
sed 's/lr=1e-2/lr=2e-2/; s/^-- .*/-- other words/; s/^output/metric("m", mean(logits, "batch seq vocab"))\noutput/' \
    small.lua >same.lua
cp -r runs/first runs/text && run same.lua target=host resume=1 train.steps=5 name=runs/text &&
    grep -q "^train.lr 0.01 -> 0.02$" said && [ -s runs/text/model/same.lua ]
result "a model file with other settings and metrics" $?
run small.lua target=host train.steps=4 train.ramp=4,4,16 name=ramp && run ramp resume=1 train.steps=6 &&
    grep -q "^train.steps 4 -> 6" said
result "a batch that grows" $?

cp -r runs/first runs/done
for way in "$PLEAT run" "$PLEAT-run" "mpirun -n 2 $PLEAT run"; do
    case $way in mpirun*) mpirun --version >said 2>&1 || continue ;; esac
    find runs/done -type f -exec cksum {} + | sort >before
    $way runs/done resume=1 train.steps=3 train.lr=0.5 >said 2>&1 && [ "$(wc -l <said)" = 1 ] &&
        grep -q "^runs/done has done 4 steps, train.steps=3: nothing is left to do$" said &&
        find runs/done -type f -exec cksum {} + | sort | cmp -s - before
    result "fewer steps than are done: a line, nothing changes ($(echo "$way" | sed "s|[^ ]*/||g"))" $?
done
run runs/done/ resume=1 name=./runs/done train.steps=5 && grep -q "^train.steps 4 -> 5$" said
result "its own name" $?

# ---- data that grow ---------------------------------------------------------------

mkdir grows both small
head -c 1000 text | tee grows/a.txt >both/a.txt
tail -c 1000 text >both/b.txt
head -c 18 text >small/a.txt
order="target=host data.order=files data.valid="
# shellcheck disable=SC2086
for f in both:4 grows:2 small:2; do run small.lua $order data.train="${f%:*}" train.steps="${f#*:}" name="runs/${f%:*}"; done
cp both/b.txt grows/0.txt
refused "a file before those that were read" "data are others .* files may be added behind" runs/grows train.steps=4
mv grows/0.txt grows/b.txt
refused "in another order" "training data are others" runs/grows train.steps=4 data.order=shuffle
run runs/grows resume=1 train.steps=4
grep -q "^the training data grew: file 1000" said && same runs/grows runs/both 4
result "files that come behind: the run that had them from the start" $?
cp both/b.txt small/b.txt
refused "files behind those that were read twice" "training data are others" runs/small train.steps=4
run small.lua target=host data.order=files data.train=both train.steps=2 name=runs/tail
cp both/b.txt both/c.txt
refused "files behind what a tail held out" "training data are others" runs/tail train.steps=4

# ---- what must not ------------------------------------------------------------------

refused "a seed" "seed is 0 in runs/first/config.lua and 3 now: initial values" runs/first seed=3
refused "another name" "name=runs/other: a run that goes on stays in its folder, runs/first" runs/first name=runs/other
[ ! -e runs/other ]
result "and nothing is there" $?
"$PLEAT-run" runs/first resume=1 name=runs/other >said 2>&1
[ $? = 1 ] && grep -q "name=runs/other: a run that goes on stays" said && [ ! -e runs/other ]
result "refused: another name, by pleat-run" $?
refused "another beginning" "from is (not set) in runs/first/config.lua and whole now: a run goes on from its own checkpoint" runs/first from=whole
"$PLEAT-run" runs/first resume=1 train.stepz=9 >said 2>&1
[ $? = 1 ] && grep -q "unknown key 'train.stepz' (did you mean 'train.steps'?)" said
result "refused: an unknown key, by pleat-run" $?
run small.lua target=host name=fresh from=nothing
[ $? = 1 ] && grep -q "^error: from: nothing: No such file" said && [ ! -e fresh ]
result "refused: a beginning that is not there, before a folder is" $?
run small.lua target=host name=text/run
[ $? = 1 ] && grep -q "^error: cannot make the folder text/run/ckpt: Not a directory" said
result "refused: a folder below a file" $?
refused "a precision" "precision.policy is fp32 .* and bf16 now: parameters" runs/first precision=bf16
refused "an axis" "the model is not that of runs/first: 'axis seq *4 .*' was 'axis seq *8 " runs/first axes.seq=4
refused "an order" "training data are others than those of runs/first: order" runs/first data.order=files
refused "a tail that training had" "training data are others .* samples 249 from 0" runs/first data.valid=text
sed 's/silu/relu/' small.lua >other.lua
exec 9<runs/first && flock -n 9
refused "a folder that another run has" "runs/first is another run's, which has not ended" runs/first
exec 9<&-
run other.lua target=host name=
[ $? = 1 ] && grep -q "^error: name is empty" said
result "refused: no name" $?
refused "an unknown key" "unknown key 'train.stepps' (did you mean" runs/first train.stepps=3
find runs/first -type f -exec cksum {} + | sort >before
run other.lua target=host resume=1 name=runs/first
[ $? = 1 ] && grep -q "the model is not that of runs/first: '%relu.* was '%silu" said &&
    find runs/first -type f -exec cksum {} + | sort | cmp -s - before
result "refused: a model that computes something else" $?
echo x >>text
refused "data that changed" "training data are others than those of runs/first: file 2002 .*it was: file 2000" runs/first
cp text.was text
cp -r runs/first runs/cut && head -c 300 runs/first/config.lua >runs/cut/config.lua
refused "settings cut off" "runs/cut/config.lua:[0-9]*: error: " runs/cut
sed 's/format = 2/format = 3/' runs/first/config.lua >runs/cut/config.lua
refused "settings of a later program" "config.lua:3: error: is of run format 3; Pleat [0-9.]* knows formats 1 to 2" runs/cut
cp runs/first/config.lua runs/cut/config.lua
for at in 10 2000 90000; do
    cp runs/first/plan runs/cut/plan && printf '~' | dd of=runs/cut/plan bs=1 seek=$at conv=notrunc 2>said
    refused "a plan damaged at $at" "runs/cut/plan: error: \(not a plan\|damaged\)" runs/cut
done
head -c 5000 runs/first/plan >runs/cut/plan
refused "a plan cut off" "runs/cut/plan: error: damaged: the last line is not its hash" runs/cut
cp runs/first/plan runs/cut/plan

# ---- metrics.jsonl --------------------------------------------------------------

cp -r runs/first runs/torn && rm -r runs/torn/ckpt/step-00000004 && printf '{"step": 5, "lo' >>runs/torn/metrics.jsonl &&
    run runs/torn resume=1 train.steps=6
seq 6 >steps && sed -n 's/^{"step": \([0-9]*\), "loss": .*}$/\1/p' runs/torn/metrics.jsonl | cmp -s - steps &&
    ! grep -qv '^{.*}$' runs/torn/metrics.jsonl && ! grep -q '"again"' runs/torn/metrics.jsonl &&
    grep -q '^{"step": 5, "lo$' runs/torn/metrics.undone.jsonl &&
    [ "$(grep -c '"loss"' runs/torn/metrics.undone.jsonl)" = 2 ]
result "metrics.jsonl has one line a step; a torn line and undone steps move away" $?
mkdir -p full/ckpt && ln -s /dev/full full/metrics.jsonl && run small.lua target=host name=full
[ $? = 0 ] && [ "$(grep -c "^warning: cannot write full/metrics.jsonl: No space left" said)" = 1 ] &&
    grep -q "^step *4/4" said
result "a full disk is one warning" $?

# ---- a step again ------------------------------------------------------------

# again NAME STATUS TEXT arguments...: ends so, with TEXT; nothing is written
again() {
    name=$1 want=$2 text=$3
    shift 3
    find "$1" -type f -exec cksum {} + | sort >before
    run "$@"
    got=$?
    find "$1" -type f -exec cksum {} + | sort | cmp -s - before && [ $got = "$want" ] && grep -q -- "$text" said
    result "replay: $name" $?
}
again "a step between checkpoints" 0 "^step 3 loss 0x1[.0-9a-f]*p+2 (4.[0-9]*) gnorm 0x[^ ]* ([0-9.]*): as recorded" whole --replay 3
again "a checkpoint's step, to the bit" 0 "^whole/ckpt/step-00000006 holds the same values, to the bit" whole --replay 6
[ "$(grep -c "as recorded" said)" = 2 ] && grep -q "^from whole/ckpt/step-00000004" said
result "replay: from the checkpoint before" $?
again "the first step" 0 "^step 1 loss .*: as recorded" whole --replay 1
grep -q "^from the start" said
result "replay: from the start" $?
again "with the settings it had" 0 "^step 4 loss .*: as recorded" runs/lr --replay 4
again "with those it had later" 0 "^step 6 loss .*: as recorded" runs/lr --replay 6
again "of two ranks, in one process" 0 "^runs/fold/ckpt/step-00000008 holds the same values" runs/fold --replay 8
if mpirun --version >said 2>&1; then
    find runs/fold -type f -exec cksum {} + | sort >before
    mpirun -n 2 "$PLEAT" run runs/fold --replay 8 >said 2>&1 &&
        grep -q "^runs/fold/ckpt/step-00000008 holds the same values, to the bit" said &&
        find runs/fold -type f -exec cksum {} + | sort | cmp -s - before
    result "replay: of two ranks, in two processes" $?
else
    echo "ok - record: replay: in two processes # SKIP there is no mpirun"
fi
again "a step that was not run" 1 "^error: whole has done 8 steps: there is no step 9" whole --replay 9
cp -r whole wrong && sed -i 's/"step": 7, "loss": 4/"step": 7, "loss": 5/' wrong/metrics.jsonl
again "one that is not as recorded" 3 "^error: step 8 is not what the run had" wrong --replay 8
grep -q "^  recorded: loss 5" said && grep -q "^step 8 loss .*: as recorded" said
result "replay: it says which" $?
cp -r runs/lr late && rm -r late/ckpt/step-0000000[24]
again "without a checkpoint" 1 "no checkpoint from which step 5 is reached with the settings it had since step 4" late --replay 5
run small.lua --replay 3
[ $? = 1 ] && grep -q "takes a run's folder" said
result "replay: of a model there is none" $?

# ---- format 1 ---------------------------------------------------------------------

"$PLEAT" ckpt verify format1 >said 2>&1
result "format 1: its checkpoint is whole" $?
"$PLEAT" ckpt export-hf format1 hf >said 2>&1 && [ -s hf/model.safetensors ] && grep -q '"a\\"b"' hf/config.json
result "format 1: it is exported" $?
"$PLEAT" generate format1 --prompt License -n 3 >said 2>&1
result "format 1: it makes text" $?
format=$(sed -n 's/^FORMAT(plan, *\([0-9]*\),.*/\1/p' ../../../ir/base/formats.def | tail -n 1)
"$PLEAT" show format1/plan >said 2>&1
[ $? = 1 ] && grep -q "format1/plan: error: is a plan of format 1; Pleat [0-9.]* executes format $format" said
result "format 1: its plan is refused by its number" $?
"$PLEAT-run" format1 resume=1 >said 2>&1
[ $? = 1 ] && grep -q "is a plan of format 1; Pleat [0-9.]* executes format $format" said
result "format 1: without a compiler too" $?
"$PLEAT" eval format1 >said 2>&1 && grep -q "val loss 4.66" said
result "format 1: it is evaluated" $?
cp -r format1 kept
run format1 resume=1 train.steps=8 && grep -q "warning: format1/plan is a plan of format 1, .* compiled anew" said &&
    grep -q "^resume at step 4$" said
result "format 1: it goes on, compiled anew" $?
sed -n 's/^{"step": \([5-8]\), "loss": \([0-9.]*\),.*/\1 \2/p' format1/metrics.jsonl >got
sed 's/"step": \([5-8]\), "loss": /\1 /' expect | paste -d' ' - got |
    awk '{ d = ($2 - $4) / $2; d = d < 0 ? -d : d; if (d > worst) worst = d; n += $1 == $3 }
        END { printf "# largest relative difference %.2g\n", worst; exit !(n == 4 && worst < 1e-5) }' >said
status=$?
cat said
result "format 1: to the losses it would have had" $status
cmp -s kept/config.lua format1/config.1.lua && cmp -s kept/plan format1/plan.1 &&
    grep -q "format = 2" format1/config.lua && run format1 resume=1 train.steps=9 && ! grep -q warning said
result "format 1: what it was is kept, it is format 2 now" $?

# ---- format 5 ---------------------------------------------------------------------

gzip -dc ../../../tests/data/runs/format5.plan.gz >format5.plan
tr -dc 'a-o' <../../../README.md | tr 'a-o' '\001-\017' >few
"$PLEAT" show format5.plan >said 2>&1
[ $? = 1 ] && grep -q "format5.plan: error: is a plan of format 5; Pleat [0-9.]* executes format $format" said
result "format 5: a plan is refused by its number" $?
run format5.plan data.train=few name=anew && grep -q "warning: format5.plan is a plan of format 5, .* compiled anew" said &&
    run ../../../tests/models/trip.lua target=host train.steps=3 data.train=few name=now &&
    cut -d, -f1-3 anew/metrics.jsonl >got && cut -d, -f1-3 now/metrics.jsonl | cmp -s - got
result "format 5: compiled anew it trains as its sources do" $?
exit $bad
