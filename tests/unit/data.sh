#!/bin/sh
# data: texts to tokens as a user does it: `data tokenize`, `data inspect`, a run
# on text through a tokenizer against one on its tokens, and what is refused.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/data
rm -rf "$dir" && mkdir -p "$dir" || exit 2
export XDG_CACHE_HOME="$dir/cache"
kinds=tests/data/tokenizer
. tests/expect

# ---- files ---------------------------------------------------------------------

awk 'BEGIN { for (i = 0; i < 3000; i++) {
    if (i % 500 == 499) print "{\"id\": " i ", \"text\": \"\"}"
    else print "{\"text\": \"Line " i ": caf\\u00e9, \\n\\tint x" i " = \\ud83d\\ude00 " i * 7919 ";\"}"
}}' >"$dir/t.jsonl"
gzip -k "$dir/t.jsonl"
is "tokenize" 0 "$PLEAT" data tokenize "$dir/t.jsonl" -o "$dir/t" tokenizer=$kinds/llama3.json
says "tokenize counts" "3000 documents (6 empty)"
says "tokenize names the separator" "(u16), <|endoftext|> after each document"
is "tokenize, one thread, gzipped" 0 env PLEAT_THREADS=1 "$PLEAT" data tokenize \
    "$dir/t.jsonl.gz" -o "$dir/z.bin" data.tokenizer=$kinds/llama3.json
is "the same tokens" 0 cmp "$dir/t.bin" "$dir/z.bin"
is "the same index" 0 cmp "$dir/t.idx" "$dir/z.idx"
if command -v zstd >/dev/null; then
    zstd -qk "$dir/t.jsonl" && cat "$dir/t.jsonl.zst" "$dir/t.jsonl.zst" >"$dir/two.jsonl.zst"
    head -c 9000 "$dir/t.jsonl.zst" >"$dir/cut.jsonl.zst"
    is "tokenize .zst" 0 "$PLEAT" data tokenize "$dir/t.jsonl.zst" -o "$dir/zst" tokenizer=$kinds/llama3.json
    is "the same tokens of .zst" 0 cmp "$dir/t.bin" "$dir/zst.bin"
    is "two frames" 0 "$PLEAT" data tokenize "$dir/two.jsonl.zst" -o "$dir/two" tokenizer=$kinds/llama3.json
    says "are all documents" "6000 documents (12 empty)"
    is "a .zst that is cut off" 1 "$PLEAT" data tokenize "$dir/cut.jsonl.zst" -o "$dir/bad" tokenizer=$kinds/llama3.json
    says "is said" "is cut off"
fi
# 100 numbers of fp32: 0 but for 0.5, the last one.
{ printf "\223NUMPY\1\0v\0%-117s\n" "{'descr': '<f4', 'fortran_order': False, 'shape': (100,), }"
  head -c 396 /dev/zero; printf '\0\0\0?'; } >"$dir/half.npy"
is "tokens that are no whole numbers" 1 "$PLEAT" run models/tiny.lua target=host data.valid= name="$dir/half" \
    axes.seq=16 axes.batch=1 train.batch=1 data.train="$dir/half.npy"
says "are said" "data.train: 0.5 at 99 of $dir/half.npy is not a whole number"
is "inspect" 0 "$PLEAT" data inspect "$dir/t.bin" tokenizer=$kinds/llama3.json
says "inspect shows the text" 'text       "Line 0: café, \n\tint x0 = 😀 0;<|endoftext|>"'
says "inspect counts sequences" "2994 sequences of 3000 documents"
is "without separator, with the template" 0 "$PLEAT" data tokenize "$dir/t.jsonl" \
    -o "$dir/u" tokenizer=$kinds/llama3.json eod=none template=1
is "inspect that" 0 "$PLEAT" data inspect "$dir/u.bin" tokenizer=$kinds/llama3.json
says "the template comes first" 'text       "<|endoftext|>Line 0'

# ---- tables --------------------------------------------------------------------
# As Hugging Face datasets are on disk and on its hub.

files=tests/data/files
mkdir -p "$dir/set/train" "$dir/hub/data" "$dir/same"
cp $files/texts.arrow "$dir/set/train/data-00000-of-00002.arrow"
cp $files/file.arrow "$dir/set/train/data-00001-of-00002.arrow"
for f in state dataset_info; do echo '{}' >"$dir/set/train/$f.json"; done
echo '{"splits": ["train"]}' >"$dir/set/dataset_dict.json"
cp $files/texts.parquet "$dir/hub/data/train-00000-of-00001.parquet"
cp $files/hole.parquet "$dir/hub/data/test-00000-of-00001.parquet"
cp README.md LICENSE "$dir/hub" && cp README.md $files/u2.npy "$dir/hub/data"
for f in one two; do cp $files/texts.jsonl "$dir/same/$f.jsonl"; done
is "inspect a table" 0 "$PLEAT" data inspect $files/texts.arrow
says "has documents" "documents  7, of 1 to 301 tokens"
is "tokenize a table" 0 "$PLEAT" data tokenize $files/texts.arrow -o "$dir/table" tokenizer=bytes field=text eod=none
is "and the same texts" 0 "$PLEAT" data tokenize $files/texts.jsonl -o "$dir/lines" tokenizer=bytes field=text eod=none
is "give the same tokens" 0 cmp "$dir/table.bin" "$dir/lines.bin"
is "inspect another column" 0 "$PLEAT" data inspect $files/texts.csv format=csv field=id
says "has its texts" 'text       "0'
is "another column" 1 "$PLEAT" data tokenize $files/texts.arrow -o "$dir/x" field=id
says "of numbers" 'texts.arrow: error: has a column "id" that holds no texts'
is "none of that name" 1 "$PLEAT" data tokenize $files/texts.arrow -o "$dir/x" field=body
says "lists those that are there" 'has no "body" (data.field= names one of: id, bool, none, list, struct, fixed, word, text, after)'
is "a table without rows" 0 "$PLEAT" data tokenize $files/none.parquet -o "$dir/none" tokenizer=bytes
says "has no documents" "0 documents"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 5\n' 0 >"$dir/pointer.jsonl"
is "a pointer of Git LFS" 1 "$PLEAT" data tokenize "$dir/pointer.jsonl" -o "$dir/x" tokenizer=bytes
says "is named" "pointer.jsonl: error: is a pointer of Git LFS: git lfs pull fetches the file"
echo '[[1, 2], [3]]' >"$dir/ids.json" && printf '[1, 2] of Smith\nand others\n' >"$dir/notes"
is "an array of tokens" 1 "$PLEAT" data tokenize "$dir/ids.json" -o "$dir/x" tokenizer=bytes
says "is no text" "ids.json:1: error: is no object of JSON with texts"
is "a text that begins with numbers" 0 "$PLEAT" data inspect "$dir/notes"
says "is one" "notes: text"
mkdir "$dir/set[1]" && cp $files/texts.jsonl "$dir/set[1]"
is "a folder with brackets" 0 "$PLEAT" data blend 1 "$dir/set[1]" axes.seq=16 tokenizer=bytes
says "has its file" "set[1]"

# ---- runs ----------------------------------------------------------------------

cat README.md LICENSE README.md >"$dir/text.txt"
run() {
    to=$1
    shift
    "$PLEAT" run models/tiny.lua axes.batch=2 axes.seq=16 train.batch=4 \
        axes.vocab=1501 train.steps=3 train.warmup=0 data.valid= \
        name="$dir/$to" "$@" || return
    sed -n '/"loss"/{s/, "step_ms".*//;p;}' "$dir/$to/metrics.jsonl" >"$dir/$to.loss"
}
is "tokenize a text" 0 "$PLEAT" data tokenize "$dir/text.txt" -o "$dir/text" tokenizer=$kinds/qwen2.json
is "a run on text" 0 run a data.train="$dir/text.txt" data.tokenizer=$kinds/qwen2.json
says "its tokens are kept" ", kept as $dir/cache/pleat/tokens-"
is "a run on its tokens" 0 run b data.train="$dir/text"
is "has the same losses" 0 cmp "$dir/a.loss" "$dir/b.loss"
is "losses there are" 0 grep -c '"loss"' "$dir/a.loss"
for f in set same; do is "a run on a folder, $f" 0 run run.$f data.train="$dir/$f" data.format=auto; done
is "of a dataset: its split for training, and no more" 0 cmp "$dir/run.set.loss" "$dir/run.same.loss"
is "a run on a folder of tables" 0 run hub.run data.train="$dir/hub"
says "leaves out another split, other kinds and README" \
    "hub: parquet, 7 documents, 376 tokens; left out: README.md, test-00000-of-00001.parquet, u2.npy"
is "a second run" 0 run c data.train="$dir/text.txt" data.tokenizer=$kinds/qwen2.json
cp "$dir/log" "$dir/c.log"
is "makes no tokens again" 1 grep "kept as" "$dir/c.log"
mkdir "$dir/away" && cp -r "$dir/a" "$dir/away/a" && echo '{}' >"$dir/a/tokenizer.json"
is "the run's folder has the tokenizer" 1 "$PLEAT" generate "$dir/a" -n 1
says "and it is the one that is read" "a/tokenizer.json: error: model"
is "another may be named" 0 "$PLEAT" generate "$dir/a" -n 1 data.tokenizer=$kinds/qwen2.json
is "generate" 0 "$PLEAT" generate "$dir/away/a" --prompt "é in" -n 5
says "generate begins with the prompt" "é in"

# ---- blends --------------------------------------------------------------------

sets=tests/data/indexed
is "a blend" 0 "$PLEAT" data blend 0.7 $sets/a 0.3 $sets/b axes.seq=8 train.steps=111 \
    train.batch=8 order=megatron seed=1234 -o "$dir/blend"
says "documents, tokens, samples, drawn, epochs" \
    " 30.07 %           40           1720          214          267    1.248  $sets/b"
is "its order is written" 0 "$PLEAT" data inspect "$dir/blend-dataset_index.npy"
says "one number for each sample" "tokens     888 (i16), from 0 to 1"
is "and which of its samples" 0 "$PLEAT" data inspect "$dir/blend-dataset_sample_index.npy"
says "up to the last drawn" "tokens     888 (i64), from 0 to 620"
is "paths alone" 0 "$PLEAT" data blend $sets/a $sets/d axes.seq=8
says "go by their sizes" " 80.58 %          300           6210          776          776    1.000  $sets/a"
is "a blend without a weight" 1 "$PLEAT" data blend 0.5 $sets/a $sets/b

# ---- mistakes ------------------------------------------------------------------

wrong() {
    is "$1" 1 "$PLEAT" data tokenize "$dir/$2" -o "$dir/x" tokenizer=$kinds/gpt2.json
    says "$1: says where" "$3"
}
printf '{"text": "a"}\n\n{"text": "b}\n' >"$dir/broken.jsonl"
wrong "a broken line" broken.jsonl "broken.jsonl:3: error: "
printf '{"text": "a"}\n{"body": "b"}\n' >"$dir/field.jsonl"
wrong "a line without text" field.jsonl 'field.jsonl:2: error: has no "text" (data.field= names one of: body)'
printf 'one\ntwo\nthr\303(e\n' >"$dir/latin.txt"
wrong "no UTF-8" latin.txt "latin.txt:3: error: is no valid UTF-8"
is "no file is left" 1 sh -c "ls $dir | grep ^x"
is "a vocabulary that is too small" 1 run d axes.vocab=1500 \
    data.train="$dir/text.txt" data.tokenizer=$kinds/qwen2.json
says "says both sizes" "has 1501 tokens, the model's vocabulary 1500 (axes.vocab)"
is "tokens beyond the vocabulary" 1 run e axes.vocab=300 data.train="$dir/text"
says "says so before the first step" "of $dir/text.bin is beyond the vocabulary of 300"
is "an unknown separator" 1 "$PLEAT" data tokenize "$dir/t.jsonl" -o "$dir/x" \
    tokenizer=$kinds/gpt2.json "eod=<|nothing|>"
says "says which" "has no token '<|nothing|>'"
is "tokens as text" 1 "$PLEAT" data tokenize "$dir/t.bin" -o "$dir/x" tokenizer=$kinds/gpt2.json
says "says what they are" "holds tokens already (megatron)"
is "no output named" 1 "$PLEAT" data tokenize "$dir/t.jsonl" tokenizer=$kinds/gpt2.json
is "no command" 2 "$PLEAT" data
printf '1..%d\n' $n
exit $bad
