"""Datasets and sample orders of Megatron-Core, for tests/unit/orders_test.c.

    pip install megatron-core numpy && python3 tests/data/orders.py

Megatron-Core's own code writes indexed/{a,b,c,d}.{bin,idx} and walks through
every sample of the datasets it builds for the rows of `cases`. orders.txt has
a line for each: the keys, then for training and for validation the number of
samples and the CRC-32 of their tokens (i32, seq + 1 each, one after the other),
then lines of what numpy shuffles and adds. Without torch its few names that
these modules mention are stood in for; no tensor is ever computed with.
"""
import importlib.util
import pathlib
import shutil
import sys
import tempfile
import types
import zlib

import numpy

HERE = pathlib.Path(__file__).parent
SEQ, PERSTEP, EVAL_STEPS = 8, 8, 10         # of tests/unit/tinyplan.c


def module(name, **names):
    m = sys.modules[name] = types.ModuleType(name)
    m.__dict__.update(names)
    return m


def stand_in():
    """torch, and what of megatron.core pulls in more than data."""
    class Any:
        Dataset = Tensor = object
        float = long = int = None

    if not importlib.util.find_spec("torch"):
        t = module("torch", Tensor=object, LongTensor=object)
        t.utils = module("torch.utils")
        t.utils.data = module("torch.utils.data", Dataset=object)
        t.distributed = module("torch.distributed", is_initialized=lambda: False)
    where = pathlib.Path(importlib.util.find_spec("megatron").submodule_search_locations[0])
    core = module("megatron.core")
    core.__path__ = [str(where / "core")]
    module("megatron.core.utils", log_single_rank=lambda *a, **k: None)
    module("megatron.core.tokenizers", MegatronTokenizerBase=object)
    off = types.SimpleNamespace(is_enabled=lambda: False)
    module("megatron.core.msc_utils", MultiStorageClientFeature=off)


stand_in()
from megatron.core.datasets.blended_megatron_dataset_builder import (  # noqa: E402
    BlendedMegatronDatasetBuilder)
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig  # noqa: E402
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder  # noqa: E402
from megatron.core.datasets.utils import normalize  # noqa: E402

# name: type, documents, longest document, seed
SETS = {"a": (numpy.uint16, 300, 40, 1), "b": (numpy.int32, 40, 90, 2),
        "c": (numpy.uint8, 9, 5, 3), "d": (numpy.int64, 1000, 3, 4)}

# keys as ours are written; % is the folder of the sets
cases = """
seed=1234 train.steps=20 data.train=%/a
seed=0 train.steps=1 data.train=%/a
seed=4294967295 train.steps=500 data.train=%/a data.valid=%/b
seed=7 train.steps=290 data.train=%/b
seed=7 train.steps=300 data.train=%/b
seed=3 train.steps=99 data.train=%/c
seed=3 train.steps=100 train.eval_every=30 data.train=%/d data.valid=%/c
seed=1234 train.steps=200 data.train=%/a data.split=96.9,3,1
seed=1234 train.steps=200 train.eval_every=7 data.train=%/d data.split=99,1,0
seed=5 train.steps=120 data.train=%/a data.split=7,2.5,.5
seed=5 train.steps=120 data.train=%/a data.split=1
seed=1234 train.steps=111 data.train=0.7 %/a 0.3 %/b
seed=1234 train.steps=111 data.train=30 %/a 30 %/d 1 %/c 7 %/b data.valid=2 %/b 1 %/c
seed=99 train.steps=64 data.train=0.1 %/a 0.2 %/b 0.7 %/d data.split=90,10,0
seed=99 train.steps=64 data.train=1 %/a data.split=90,9,1
seed=2 train.steps=40 data.train=size %/a size %/b size %/d
seed=2 train.steps=4000 data.train=size %/a size %/b size %/d data.split=98,2,0
""".strip().splitlines()


class Tokenizer:
    vocab_size, eod, pad = None, 0, -7
    unique_identifiers = {}


def write_sets(folder):
    for name, (dtype, docs, longest, seed) in SETS.items():
        r = numpy.random.RandomState(seed)
        b = IndexedDatasetBuilder(f"{folder}/{name}.bin", dtype=dtype)
        for _ in range(docs):
            n = r.randint(0, longest + 1)
            b.add_document(r.randint(0, 16, n), [n])
        b.finalize(f"{folder}/{name}.idx")


def blend_of(text):
    w = text.split()
    if len(w) == 1:
        return [text], None
    sizes = w[0] == "size"
    return w[1::2], None if sizes else [float(x) for x in w[::2]]


def keys_of(row, folder):
    """data.train=0.7 a 0.3 b holds spaces: a word with = begins a key."""
    keys = {}
    for word in row.replace("%", str(folder)).split():
        if "=" in word:
            key, word = word.split("=")
            keys[key] = word
        else:
            keys[key] += " " + word
    return keys


def build(keys):
    """The datasets for training and validation; the second may be None."""
    steps = int(keys["train.steps"])
    every = int(keys.get("train.eval_every", 0))
    evals = ((steps // every if every else 0) + 1) * EVAL_STEPS
    train, valid = blend_of(keys["data.train"]), keys.get("data.valid")
    split = keys.get("data.split")
    how = dict(blend=train, split=split) if split else dict(
        blend_per_split=[train, blend_of(valid) if valid else None, None])
    config = GPTDatasetConfig(
        random_seed=int(keys["seed"]), sequence_length=SEQ, tokenizer=Tokenizer(),
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, **how)
    sizes = [steps * PERSTEP, evals * PERSTEP, 0]
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()[:2]


def sample(d, i):
    if isinstance(d, GPTDataset):
        return d._query_document_sample_shuffle_indices(i)[0]
    return sample(d.datasets[d.dataset_index[i]], d.dataset_sample_index[i])


def digest(d):
    if d is None:
        return "0 0"
    crc = 0
    for i in range(len(d)):
        tokens = sample(d, i)
        assert len(tokens) == SEQ + 1
        crc = zlib.crc32(tokens.astype("<i4").tobytes(), crc)
    return f"{len(d)} {crc:08x}"


def shuffles():
    for seed in 0, 1, 1234, 2**31, 2**32 - 1:
        for n in 1, 2, 10, 624, 100000:
            v = numpy.arange(n, dtype=numpy.uint32)
            numpy.random.RandomState(seed).shuffle(v)
            yield f"shuffle {seed} {n} {zlib.crc32(v.tobytes()):08x}"
    for n in 1, 3, 7, 8, 9, 20, 127, 128, 129, 1000, 4321:
        v = numpy.array([1 / (i + 3) ** 2 * (i % 7 + 1) for i in range(n)])
        yield f"sum {n} {float(numpy.sum(v)).hex()} {float(normalize(v)[n // 2]).hex()}"


def main():
    out = HERE / "indexed"
    out.mkdir(exist_ok=True)
    lines = [f"case {row} | {{}}" for row in cases]
    with tempfile.TemporaryDirectory() as folder:
        write_sets(folder)
        for i, row in enumerate(cases):
            sets = build(keys_of(row, folder))
            lines[i] = lines[i].format(" | ".join(digest(d) for d in sets))
        for f in pathlib.Path(folder).glob("?.[bi][in][nx]"):
            shutil.copy(f, out)
        for f in pathlib.Path(folder).glob("?.idx"):
            shutil.copy(f, out)
    (HERE / "orders.txt").write_text("\n".join(lines + list(shuffles())) + "\n")


main()
