#!/bin/sh
# help: what `pleat help` says is so: the examples of every command run, in a folder
# as its reader has it; names of other programs' keys lead to keys that are there;
# completions complete; exit statuses tell an end from a stop.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
top=$PWD
dir=$PWD/build/tests/help
rm -rf "$dir" && mkdir -p "$dir/bin" "$dir/olmoe" || exit 2
ln -s "$PLEAT" "$dir/bin/pleat"
PATH=$dir/bin:$PATH
. tests/expect

commands=$(sed -n 's/^COMMAND("\([a-z]*\)".*/\1/p' frontend/commands.def)
for c in $commands; do
    is "$c -h" 0 pleat "$c" -h
    says "$c -h has its usage" "usage: pleat $c"
    is "$c -h has two examples" 0 sh -c "[ \$(sed -n '/^examples/,\$p' $dir/said | grep -c '^  pleat ') = 2 ]"
done

# ---- examples ----------------------------------------------------------------

# The folder of a Hugging Face model, and texts.
small="axes.hidden=16 axes.heads=2 axes.dim=8 axes.ffn=8 axes.expert=8 axes.vocab=1501 axes.seq=32 axes.batch=2 train.batch=2"
sed 's/eps = 16, 1e-5/eps = 1, 1e-5/' models/olmoe.lua >"$dir/one.lua"
cp tests/data/tokenizer/qwen2.json "$dir/tokenizer.json"
head -c 4000 LICENSE >"$dir/book.txt"
tr -cd 'a-zA-Z. \n' <LICENSE | head -n 60 | sed 's/.*/{"text": "&"}/' >"$dir/books.jsonl"
cp tests/data/files/hellaswag.jsonl "$dir"
cp tests/data/files/many.gzip.parquet "$dir/table.parquet"
printf 'id,text\n1,one\n2,two\n' >"$dir/table.csv"
cd "$dir" || exit 2
# shellcheck disable=SC2086
is "the folder: a run" 0 pleat run one.lua $small name=made train.steps=1 data.train=books.jsonl \
    data.tokenizer=tokenizer.json target=host precision=fp32
rmdir olmoe
is "the folder" 0 pleat export made olmoe

for c in new import check compile run eval bench search show generate logits export compare watch ckpt data doctor help; do
    [ $c != check ] || is "the model of the examples, made small" 0 sh -c "pleat new tiny my.lua &&
        sed -i 's/batch=8, seq=64, hidden=128/batch=2, seq=16, hidden=32/;s/ffn=256/ffn=32/;s/batch=64, steps/batch=16, steps/' my.lua"
    [ $c != export ] || is "the run of the examples" 0 pleat run olmoe.lua from=olmoe data.train=books.jsonl \
        train.steps=1 train.batch=2 axes.seq=32 target=host
    pleat help $c | sed -n '/^examples/,$s/^  //p' >examples
    while read -r line; do
        case $line in *--calibrate*) line="$line axes.seq=32 axes.batch=2 axes.hidden=32 axes.wide=64 axes.ffn=64 axes.vocab=64" ;; esac
        is "$line" 0 sh -c "$line"
    done <examples
    commands=$(echo "$commands" | grep -vx $c)
done
is "a run is as itself" 0 pleat compare runs/my runs/my
says "it says so" "losses of 6 steps are the same"
is "a run alone" 0 pleat compare runs/my
says "is a curve" "1    6 steps"
is "of a column a step, with a star in each" 0 awk '/\|/ { for (i = 13; i <= 18; i++) if (substr($0, i, 1) == "*") seen[i] = 1; n += length($0) == 18 }
    END { for (i = 13; i <= 18; i++) all += seen[i]; exit !(all == 6 && n == 12) }' "$dir/said"
is "another has other settings and losses" 0 pleat compare runs/my runs/olmoe
says "the settings" "runs/olmoe"
is "of each" 0 grep -E '^train.steps +6 +1$' "$dir/said"
is "and the step from which losses differ" 0 grep -q '^losses differ from step 1 on$' "$dir/said"
is "no command is left out" 0 test -z "$commands"

# The guides, a command after the other, and the model in them.
sed -n 's/^    \(pleat .*\)/\1/p' "$top/models/guides.md" >guide
while read -r line; do
    case $line in "pleat run first_moe.lua data.train="*) line="$line axes.hidden=32 axes.ffn=32" ;; esac
    is "$line" 0 sh -c "$line"
done <guide
is "they have commands" 0 grep -q export guide
sed -n '/^```lua/,/^```$/p' "$top/models/guides.md" | grep -v '^```' >torch.lua
is "from PyTorch: a model" 0 pleat run torch.lua target=host data.train=book.txt axes.vocab=256 train.steps=1 train.batch=2

# The README, in the order in which its commands stand.
mkdir -p build && ln -sf "$PLEAT" build/pleat && ln -sfn olmoe OLMoE-1B-7B-0924
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
grep -E '^    (build/pleat|mpirun) ' "$top/README.md" >readme
while read -r line; do
    case $line in
    *" search "*) line="${line%%#*} --seconds 30" ;;
    mpirun*) command -v mpirun >/dev/null || continue
        line="mpirun --oversubscribe${line#mpirun}" ;;
    *imported.lua\ from=*) line="$line train.batch=2 axes.seq=32 target=host" ;;
    esac
    is "README: $line" 0 sh -c "$line"
    case $line in *" new "*) cp my.lua moe.lua ;; esac      # the small one
done <readme
is "the README has commands" 0 grep -q "pleat export" readme

# Questions: each command gets the message above it.
cp "$top/tests/data/files/texts.arrow" table.arrow
printf '\1\0\0\0\2\0\0\0' >raw.bin
sed -n 's/^### //p;s/^    \(pleat .*\)/\1/p' "$top/models/faq.md" >faq
while read -r message && read -r line; do
    is "$line" 1 sh -c "$line"
    says "says what the question is" "$message"
done <faq
is "there are questions" 0 grep -q table.csv faq

# ---- names of other programs ---------------------------------------------------

cd "$top" || exit 2
is "all suggested keys are there" 0 sh -c "sed -n 's/^ALIAS(.*, \"\(.*\)\")/\1/p' ir/settings/aliases.def | grep -v '^axes' | sort -u |
    while read -r k; do pleat help \$k | grep -q \"^\$k=\" || { echo \$k; exit 1; }; done"
for pair in learning_rate:train.lr train.learning_rate:train.lr Global-Batch-Size:train.batch epochs:train.steps \
    warmup_steps:train.warmup lr:train.lr micro_batch_size:axes.batch; do
    is "${pair%:*}" 1 pleat check models/tiny.lua "${pair%:*}=1"
    says "is ${pair#*:}" "(did you mean '${pair#*:}'?)"
done
is "an option for a key" 2 pleat check models/tiny.lua --learning-rate 1e-3
says "leads to the key" "keys have no dashes: train.lr=VALUE"
is "a misspelt option" 2 pleat generate x --promt x
says "is suggested" "did you mean '--prompt'?"
is "a key's row by another name" 0 pleat help max_grad_norm
says "is the key's" "train.clip=1"
is "an axis from the command line" 1 pleat check models/tiny.lua axes.dim=5
says "is named where it is wrong" "note: the command line has axes.dim=5"

# ---- other programs ------------------------------------------------------------

is "a man page" 0 pleat help man
says "has keys" 'train.lr=3e\-4'
is "and statuses" 0 grep -q "^.SH EXIT STATUS" "$dir/said"
if command -v groff >/dev/null; then
    is "groff reads it without a word" 0 sh -c "[ -z \"\$(pleat help man | groff -man -Tutf8 -ww -z 2>&1)\" ]"
fi
cat >"$dir/complete" <<'END'
eval "$(pleat help completion bash)" 2>/dev/null
compopt() { :; }
complete_words() { COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _pleat; echo "${COMPREPLY[*]}"; }
complete_words pleat compi
complete_words pleat run train.war
complete_words pleat run train.schedule = co
complete_words pleat generate --te
END
if command -v bash >/dev/null; then
    is "bash completes" 0 bash "$dir/complete"
    cp "$dir/log" "$dir/said"
    is "commands, keys, values, options" 0 sh -c "printf 'compile\ntrain.warmup=\nconstant cosine\n--temperature\n' | cmp - $dir/said"
fi
is "no such shell" 2 pleat help completion fish

# ---- setup ------------------------------------------------------------------------

mkdir -p "$dir/clone" && cp setup "$dir/clone" || exit 2
is "setup --help" 0 "$dir/clone/setup" --help
says "its usage" "usage: ./setup [target ...]"
is "setup -h" 0 "$dir/clone/setup" -h
is "setup with an unknown option" 2 "$dir/clone/setup" test --frob
says "is refused" "setup: no option '--frob' (./setup --help)"
is "nothing was installed or written" 1 test -e "$dir/clone/build"

# ---- people and pipes ------------------------------------------------------------

is "no colours in a pipe" 1 sh -c "pleat check none.lua 2>&1 | grep -q '$(printf '\033')'"
if command -v script >/dev/null; then
    is "colours on a terminal" 0 sh -c "script -qec 'pleat check none.lua' /dev/null | grep -q '$(printf '\033')'"
    is "none if one wants none" 1 sh -c "NO_COLOR=1 script -qec 'pleat check none.lua' /dev/null | grep -q '$(printf '\033')'"
fi
is "a run that train.hours stops" 4 pleat run models/tiny.lua target=host train.steps=9 train.hours=1e-9 \
    axes.hidden=32 axes.ffn=32 axes.seq=16 train.batch=8 data.valid= name="$dir/stopped"
is "and that ends" 0 pleat run "$dir/stopped" resume=1 train.steps=2 train.hours=1000
printf '1..%d\n' $n
exit $bad
