#!/bin/sh
# bench/olmoe_long.sh TEXT TOKENIZER.json [STEPS [key=value ...]]: a long run of OLMoE
# beside transformers (torch_olmoe.py): its widths, cut to four layers, learned routing
# with both losses of the router, from the same first weights in a Hugging Face folder,
# on the same tokens in the same order, with the same AdamW, clip and rates. Prints mean
# losses (lm) of each tenth of the steps, how far ours is from theirs, and the largest
# difference of one of the first 20 steps. Both curves stay in $CURVES, where it is set.
# SIZES: layers, hidden, heads, ffn, experts, chosen, vocab, sequence, sequences a step.
cd "$(dirname "$0")/../.." || exit 2
PLEAT=${PLEAT:-build/pleat} PYTHON=${PYTHON:-python3}
[ $# -gt 1 ] || { sed -n '2,9s/^# //p' "$0"; exit 2; }
text=$1 tokenizer=$2 steps=${3:-1000} lr=4e-4
shift $(($# > 2 ? 3 : 2))
dir=$(mktemp -d "${SCRATCH:-/tmp}/olmoe.XXXXXX") && trap 'rm -rf "$dir"' EXIT
read -r layers hidden heads ffn experts top vocab seq batch <<EOF
${SIZES:-4 2048 16 1024 64 8 50304 1024 6}
EOF
# logged what command...: its output is shown only where it fails
logged() { "$@" >"$dir/log" 2>&1 || { tail -n 5 "$dir/log" >&2; exit 1; }; }
peer() { logged "$PYTHON" tests/bench/torch_olmoe.py "$@"; }
# column NAME FILE: that number of each step
column() { sed -n "s/.*\"step\": \([0-9]*\),.*\"$1\": \([^,}]*\).*/\1 \2/p" "$2"; }

logged "$PLEAT" data tokenize "$text" -o "$dir/data" tokenizer="$tokenizer"
peer init "$dir/hf" "$layers" "$hidden" "$heads" "$ffn" "$experts" "$top" "$vocab"
logged "$PLEAT" import "$dir/hf" "$dir/olmoe.lua"
logged "$PLEAT" run "$dir/olmoe.lua" from="$dir/hf" name="$dir/ours" data.train="$dir/data" data.order=files \
    axes.seq="$seq" axes.batch="$batch" train.batch="$batch" train.steps="$steps" train.lr=$lr \
    train.min_lr=4e-5 train.schedule=cosine train.warmup=$((steps / 10)) train.betas=0.9,0.95 train.eps=1e-8 \
    train.weight_decay=0.1 train.no_decay= train.clip=1 train.eval_every=0 train.save_every=0 "$@"
column lm "$dir/ours/metrics.jsonl" >"$dir/ours.lm"
column step_ms "$dir/ours/metrics.jsonl" | sort -k2g | sed -n "$((steps / 2))s/.* /ours:   ms a step (median) /p"
rm -rf "$dir/ours/ckpt"
peer train "$dir/hf" "$dir/data.bin" "$seq" "$batch" "$steps" $lr "$dir/theirs.jsonl"
column lm "$dir/theirs.jsonl" >"$dir/theirs.lm"
column step_ms "$dir/theirs.jsonl" | sed -n '1s/.* /theirs: ms a step (mean) /p'
[ -z "$CURVES" ] || { mkdir -p "$CURVES" && cp "$dir/ours.lm" "$dir/theirs.lm" "$CURVES"; }
paste -d ' ' "$dir/ours.lm" "$dir/theirs.lm" | awk -v tenth=$((steps / 10)) '
    NF != 4 || $1 != $3 { print "the curves have other steps"; exit 1 }
    { off = $2 / $4 - 1; off = off < 0 ? -off : off; ours += $2; theirs += $4 }
    NR <= 20 && off > most { most = off }
    NR == 1 { printf "%9s %10s %10s %9s\n", "steps", "ours", "theirs", "ours less" }
    NR % tenth == 0 {
        printf "%4d-%4d %10.5f %10.5f %8.3f%%\n", NR - tenth + 1, NR, ours / tenth, theirs / tenth, 100 * (ours / theirs - 1)
        ours = theirs = 0
    }
    END { printf "one of the first 20 steps differs by %.2e at most\n", most }'
