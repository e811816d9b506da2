"""Tokenizers, and what the tokenizers library makes of a text with them.

    python3 tests/data/tokenizer/make.py build/tests/unit/tokenizer_test

needs the tokenizers library (pip install tokenizers; these are by 0.23.3); the
tests do not. The text is made by the test program. For each case below, beside
this file:

  <case>.json     a tokenizer trained on the text, with the pre-tokenizer of the
                  model it is named after
  expected.txt    case, document, number of tokens, CRC-32 of the tokens as
                  little-endian i32, CRC-32 of the text they decode to

  newer.txt       made-up text of characters that Unicode 10 to 17 added, in
                  newer.expected the same of it, one document

small.json has a little of all that such a file may hold, for fuzzers.
"""
import json
import pathlib
import struct
import subprocess
import sys
import zlib

import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models,
                        normalizers, pre_tokenizers, processors, trainers)

HERE = pathlib.Path(__file__).parent
END = "<|endoftext|>"
LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
            "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
            "\\s*[\r\n]+|\\s+(?!\\S)|\\s+")


def split(pattern, behavior="isolated"):
    return pre_tokenizers.Split(Regex(pattern), behavior)


def level(space=False, regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=regex)


def train(docs, pre, norm=None, model=None, size=1500, special=(END,),
          alphabet=None, limit=256):
    t = Tokenizer(model or models.BPE())
    t.pre_tokenizer = pre
    if norm:
        t.normalizer = norm
    t.train_from_iterator(docs, trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=list(special),
        limit_alphabet=limit,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        if alphabet is None else alphabet))
    t.decoder = decoders.ByteLevel()
    return t


def gpt2(docs):
    return train(docs, level(regex=True))


def llama3(docs):
    t = train(docs, pre_tokenizers.Sequence([split(LLAMA), level()]),
              model=models.BPE(ignore_merges=True))
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{END} $A",
                                      special_tokens=[(END, 0)])])
    return t


def qwen2(docs):
    t = train(docs, pre_tokenizers.Sequence([split(QWEN), level()]),
              normalizers.NFC())
    t.add_special_tokens(["<|im_start|>"])
    return t


def deepseek(docs):
    return train(docs, pre_tokenizers.Sequence([
        split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), level()]))


def flags(docs):
    """Whatever else pre-tokenizers and added tokens can be told."""
    t = train(docs, pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Punctuation("contiguous"), split(" ", "merged_with_next"),
        split("[a-f]+", "merged_with_previous"), level(True, True)]),
        normalizers.NFKC())
    t.add_tokens([AddedToken("foo", single_word=True),
                  AddedToken("<mask>", lstrip=True, normalized=False),
                  AddedToken("<x>", lstrip=True, rstrip=True),
                  AddedToken("<|im_start|>", normalized=False),
                  AddedToken("<|im", normalized=False)])
    t.post_processor = processors.RobertaProcessing(("<x>", 1501), (END, 0))
    return t


def mixtral(docs):
    """Characters, and bytes where there is none; as SentencePiece has it."""
    special = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(256)]
    t = train(docs, pre_tokenizers.Metaspace(), model=models.BPE(
        unk_token="<unk>", fuse_unk=True, byte_fallback=True), size=1800,
        special=special, alphabet=[], limit=400)
    t = json.loads(t.to_str())
    t["added_tokens"] = t["added_tokens"][:3]
    t["pre_tokenizer"] = None
    t = Tokenizer.from_str(json.dumps(t))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"),
                                         normalizers.Replace(" ", "▁")])
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    t.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    return t


def metaspace(docs):
    t = train(docs, pre_tokenizers.Metaspace(prepend_scheme="first"),
              model=models.BPE(unk_token="<unk>"), size=1200,
              special=["<unk>", END], alphabet=[], limit=400)
    t.decoder = decoders.Metaspace(prepend_scheme="first")
    return t


CASES = [gpt2, llama3, qwen2, deepseek, flags, mixtral, metaspace]


def save(case, t):
    j = json.loads(t.to_str())
    if case is gpt2:            # as older files have them
        j["model"]["merges"] = [" ".join(m) for m in j["model"]["merges"]]
    text = json.dumps(j, ensure_ascii=False, separators=(",", ":"))
    (HERE / f"{case.__name__}.json").write_text(text + "\n", "utf-8")


def line(case, t, i, doc):
    ids = t.encode(doc).ids
    text = t.decode(ids, skip_special_tokens=False).encode()
    return "%s %d %d %08x %08x\n" % (
        case.__name__, i, len(ids),
        zlib.crc32(struct.pack("<%di" % len(ids), *ids)), zlib.crc32(text))


def main():
    made = subprocess.run([sys.argv[1], "--text"], stdout=subprocess.PIPE,
                          check=True)
    docs = made.stdout.decode("utf-8").split("\x1e")
    print(tokenizers.__version__, len(docs), "documents,", len(made.stdout),
          "bytes")
    lines, newer = [], []
    for case in CASES:
        save(case, case(docs))
        t = Tokenizer.from_file(str(HERE / f"{case.__name__}.json"))
        lines += [line(case, t, i, doc) for i, doc in enumerate(docs)]
        newer.append(line(case, t, 0, (HERE / "newer.txt").read_text("utf-8")))
    (HERE / "newer.expected").write_text("".join(newer))
    (HERE / "expected.txt").write_text("".join(lines))


main()
