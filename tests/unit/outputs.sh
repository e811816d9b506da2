#!/bin/sh
# outputs: each command that writes a file replaces an empty file and its own
# output. A file of another kind and an input of the command stay as they are.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
root=$PWD tiny=$PWD/models/tiny.lua dir=$PWD/build/tests/outputs
rm -rf "$dir" && mkdir -p "$dir" && tar -xzf tests/data/runs/format1.tar.gz -C "$dir" && cd "$dir" || exit 2
. "$root/tests/expect"

mkdir other
cp "$root/README.md" other/text && cp small.lua other/model && printf '\000\001\002\003' >other/bytes
printf '<!doctype html>\n<p>mine</p>\n' >other/page
cp "$root/README.md" book.txt
is "a plan" 0 "$PLEAT" compile "$tiny" fold.pp=2 world=2 axes.batch=1 train.batch=4 -o two.plan
is "a run" 0 "$PLEAT" run small.lua target=host train.steps=1 name=runs/a

# kept FILE: it is as it was, alone, and one line has said so
kept() {
    cmp -s "$1" was && ! ls -A "$(dirname "$1")" | grep -q pleat-tmp &&
        [ "$(grep -c error: "$dir/log")" = 1 ] && grep -qF "$1 is" "$dir/log"
    ended "$2: $1 stays" $? "changed, or not one line"
}

# writes FILE command...: on its own it does, over another kind it does not
writes() {
    file=$1
    shift
    what="$1 $file"
    for kind in other/*; do
        cp "$kind" "$file" && cp "$kind" was
        is "$what over $kind" 1 "$PLEAT" "$@"
        kept "$file" "$what over $kind"
    done
    [ "$1" != bench ] || { rm "$file"; return; }
    : >"$file"
    is "$what over an empty file" 0 "$PLEAT" "$@"
    [ -s "$file" ]
    ended "$what is written" $? "empty"
    is "$what over its own" 0 "$PLEAT" "$@"
}

writes a.plan compile small.lua -o a.plan
writes small.plan compile small.lua
writes a.dot check small.lua --dot a.dot
writes b.dot compile small.lua --dot b.dot -o a.plan
writes a.html show two.plan --html a.html
writes a.trace show two.plan --trace a.trace
writes a.pickle show two.plan --snapshot a.pickle
writes a.csv show two.plan --csv a.csv
writes w.html watch runs/a -o w.html
writes runs/a/watch.html watch runs/a
writes a.machine bench --calibrate a.machine
writes out-dataset_index.npy data blend 1 book.txt data.format=bytes -o out
writes out-dataset_sample_index.npy data blend 1 book.txt data.format=bytes -o out
writes tok.bin data tokenize book.txt -o tok
rm tok.*
writes tok.idx data tokenize book.txt -o tok

# reads FILE command...: FILE is an input, and by another name the output
reads() {
    file=$1
    shift
    cp "$file" was
    is "$* reads $file" 1 "$PLEAT" "$@"
    says "$* names the input" "is an input of this command"
    cmp -s "$file" was
    ended "$*: $file stays" $? "changed"
}

ln two.plan hard.plan && ln -s small.lua soft.plan && cp book.txt in.bin
reads small.lua compile small.lua -o small.lua
reads soft.plan compile small.lua -o soft.plan
reads small.lua check small.lua --dot small.lua
reads two.plan show two.plan --html two.plan
reads two.plan show two.plan --csv hard.plan
reads in.bin data tokenize in.bin -o in
reads tok.bin data tokenize tok.bin data.format=bytes -o tok
reads out-dataset_index.npy data blend 1 out-dataset_index.npy axes.seq=2 -o out
mkdir arrays && cp out-dataset_index.npy arrays
reads arrays/out-dataset_index.npy data blend 1 arrays axes.seq=2 -o arrays/out
reads a.csv compile "$tiny" fold.pp=2 world=2 axes.batch=1 train.batch=4 fold.schedule=a.csv --dot a.csv

cp two.plan was
is "compile of a plan" 1 "$PLEAT" compile two.plan
says "a plan is no model" "two.plan is a plan, not a model"
cmp -s two.plan was
ended "compile of a plan: it stays" $? "changed"
is "one name for two outputs" 1 "$PLEAT" show two.plan --html same --trace same
says "one name for two outputs" "same is named for two outputs"
[ ! -e same ]
ended "one name for two outputs: nothing is written" $? "same is there"

# A folder with a file of a run's name that is no run's stays as it is; one that a run had begun
# when it was killed is a run's.
for name in config.lua plan data model metrics.jsonl ckpt/mine; do
    rm -rf own && mkdir -p "own/$(dirname $name)" && echo mine >own/$name && cp -r own as
    is "a run in a folder with $name" 1 "$PLEAT" run small.lua target=host train.steps=1 name=own
    [ "$(grep -c error: log)" = 1 ] && diff -r own as >>log && rm -r as
    ended "... stays" $? "changed, or not one line"
done
mkdir -p begun/ckpt && touch begun/metrics.jsonl begun/plan
is "a run in one that was begun" 0 "$PLEAT" run small.lua target=host train.steps=1 name=begun

is "tokens without a name" 1 "$PLEAT" data tokenize book.txt -o runs/
says "tokens without a name" "-o 'runs/' names no files"
for words in "bf16 fp32" "hub fused" "5GB 6GB"; do
    is "export as $words" 1 "$PLEAT" export runs/a out $words
    says "export as $words" "'${words#* }' is a second word of its kind"
done
is "export to no name" 1 "$PLEAT" export runs/a ""
cp runs/a/ckpt/step-*1/model.safetensors runs/a
is "weights and checkpoints" 1 "$PLEAT" run small.lua target=host from=runs/a name=both
says "weights and checkpoints" "from=runs/a/ckpt/step-00000001 is the newest checkpoint"

exit $bad
