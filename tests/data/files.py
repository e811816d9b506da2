"""Files of tokens and tensors written by other programs than ours, small, for
tests/unit/formats_test.c and as seeds of tests/fuzz.

    pip install numpy safetensors lm_eval datasets pyarrow polars && python3 tests/data/files.py

Token i of every file is (i * i // 7 + i) % 13 for i < 100; rows.npy has it as 10
rows of 10. texts.* hold what texts.txt says, a zero after each text; many.* all hold the same.
The layouts of llmc* and nano.bin are those of llm.c's and nanoGPT's own scripts
(data_common.py write_datafile; prepare.py, tofile). hellaswag.made.jsonl is
hellaswag.jsonl as lm-evaluation-harness changes it before it asks.
"""
import bz2
import csv
import gzip
import json
import lzma
import pathlib

import numpy
import polars
import pyarrow
import pyarrow.parquet
from lm_eval.tasks.hellaswag.utils import preprocess
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).parent / "files"
QUESTIONS = [
    ("Clearing a roof", "Then, a woman climbs a ladder and sweeps  the snow.", "then",
     [", the snow sweeps her.", ", she adds wax to the roof  and sings.", ", she climbs down."], "2"),
    ("Personal Care", "[header] How to lose a cold [title] Drink water [step] Drink a lot.",
     "Émile ÉTAIT là. WATER [substeps] helps",
     ["[step] Rest [title] Sleep  well.  ", "\u00a0Eat [x] soup\n[not\nremoved] at all.",
      "  four    spaces", "größe 中文 \U0001f600"], "1"),
    ("Baking", "", "", ["one", "two"], 0)]
TOKENS = numpy.array([(i * i // 7 + i) % 13 for i in range(100)])
TEXTS = ["", "plain", "tab\tnewline\nquote\"slash/back\\", "\x00 zero \x7f",
         "größe 中文 \U0001f600 \ud7ff", "x" * 300, "last"]


def npy():
    for t in "u1", "i1", "u2", "i2", "i4", "u4", "i8", "f4", "f8":
        numpy.save(OUT / f"{t}.npy", TOKENS.astype(t))
    numpy.save(OUT / "rows.npy", TOKENS.astype("u2").reshape(10, 10))
    for version in (2, 0), (3, 0):
        with open(OUT / f"v{version[0]}.npy", "wb") as f:
            numpy.lib.format.write_array(f, TOKENS.astype("u2"), version)
    numpy.save(OUT / "big.npy", TOKENS.astype(">i4"))
    numpy.save(OUT / "fortran.npy", numpy.asfortranarray(TOKENS.reshape(10, 10)))
    numpy.save(OUT / "scalar.npy", numpy.int32(5))
    numpy.save(OUT / "none.npy", numpy.zeros((0, 4), "u2"))
    numpy.save(OUT / "bool.npy", TOKENS > 3)
    numpy.savez(OUT / "arrays.npz", a=TOKENS)


def bins():
    TOKENS.astype("u2").tofile(OUT / "nano.bin")
    TOKENS.astype("u4").tofile(OUT / "wide.bin")
    for name, magic, version, t in (("llmc2.bin", 20240520, 1, "u2"),
                                    ("llmc4.bin", 20240801, 7, "u4")):
        head = numpy.zeros(256, "i4")
        head[:3] = magic, version, len(TOKENS)
        with open(OUT / name, "wb") as f:
            f.write(head.tobytes() + TOKENS.astype(t).tobytes())


def jsonl():
    lines = [json.dumps({"id": i, "text": t}, ensure_ascii=i % 2 == 0)
             for i, t in enumerate(TEXTS)]
    whole = ("\n".join(lines[:3]) + "\r\n\n" + "\n".join(lines[3:])).encode()
    (OUT / "texts.jsonl").write_bytes(whole)
    with gzip.GzipFile(OUT / "texts.jsonl.gz", "wb", mtime=0) as f:
        f.write(whole)
    two = gzip.compress(whole[:100], mtime=0) + gzip.compress(whole[100:], mtime=0)
    (OUT / "members.jsonl.gz").write_bytes(two)
    (OUT / "texts.txt").write_bytes(b"".join(t.encode() + b"\0" for t in TEXTS))


def tables():
    """`text` behind columns of many types, in batches, a null among its texts"""
    n = len(TEXTS)
    utf8 = [t.encode("utf8", "surrogatepass").decode("utf8") for t in TEXTS]
    kind = pyarrow.string()
    columns = {
        "id": pyarrow.array(range(n), "i4"), "bool": pyarrow.array([True] * n),
        "none": pyarrow.nulls(n), "list": pyarrow.array([["a", "b"]] * n),
        "struct": pyarrow.array([{"a": 1, "b": {"text": "x"}}] * n),
        "fixed": pyarrow.array([[1, 2]] * n, pyarrow.list_(pyarrow.int8(), 2)),
        "word": pyarrow.array(["a", "b"] * (n // 2) + ["a"] * (n % 2)).dictionary_encode(),
        "text": pyarrow.array(utf8, kind), "after": pyarrow.array([0.5] * n)}
    table = pyarrow.table(columns)
    hole = pyarrow.table({"text": pyarrow.array([utf8[1], None, utf8[2]], pyarrow.large_string())})
    with pyarrow.ipc.new_stream(str(OUT / "texts.arrow"), table.schema) as f:
        f.write_table(table, max_chunksize=3)
    with pyarrow.ipc.new_file(str(OUT / "file.arrow"), table.schema) as f:
        f.write_table(table)
    with pyarrow.ipc.new_file(str(OUT / "hole.arrow"), hole.schema) as f:
        f.write_table(hole)
    with pyarrow.ipc.new_stream(str(OUT / "packed.arrow"), hole.schema, options=pyarrow.ipc.IpcWriteOptions(
            compression="zstd")) as f:
        f.write_table(hole)
    pyarrow.parquet.write_table(table, OUT / "texts.parquet", row_group_size=3)
    pyarrow.parquet.write_table(hole, OUT / "hole.parquet", compression="zstd")


def coded():
    """texts.jsonl, and texts.txt's texts as an array and as csv, compressed and in UTF-16"""
    whole = (OUT / "texts.jsonl").read_bytes()
    (OUT / "texts.jsonl.bz2").write_bytes(bz2.compress(whole[:200]) + bz2.compress(whole[200:]))
    (OUT / "texts.jsonl.xz").write_bytes(lzma.compress(whole))
    (OUT / "wide.jsonl").write_bytes(whole.decode("utf8", "surrogatepass").encode("utf-16"))
    array = json.dumps([{"text": t, "n": [i, {"text": "no"}]} for i, t in enumerate(TEXTS)], indent=1)
    (OUT / "texts.json").write_bytes(b"\xef\xbb\xbf" + array.encode())
    for name, dialect in ("texts.csv", "excel"), ("texts.tsv", "excel-tab"):
        with open(OUT / name, "w", newline="", encoding="utf8") as f:
            csv.writer(f, dialect).writerows([["id", "text"]] + [[i, t] for i, t in enumerate(TEXTS)])


MANY = [None if i % 11 == 5 else f"{'word ' * (i % 7)}{i * i % 97} größe" for i in range(1500)]


def parquet():
    """`text` by every encoding, compression and version of pages, as two libraries write them"""
    text = pyarrow.array(MANY)
    table = pyarrow.table({"n": pyarrow.array(range(len(MANY))), "text": text,
                           "nested": pyarrow.array([[i] for i in range(len(MANY))])})
    lines = "".join(json.dumps({"text": t}) + "\n" for t in MANY).encode()
    with gzip.GzipFile(OUT / "many.jsonl.gz", "wb", mtime=0) as f:
        f.write(lines)

    def write(name, table=table, **how):
        pyarrow.parquet.write_table(table, OUT / name, write_statistics=False, store_schema=False, **how)
    write("many.snappy.parquet", row_group_size=500)
    write("many.gzip.parquet", compression="gzip", data_page_version="2.0")
    write("many.lengths.parquet", compression="zstd", use_dictionary=False,
          column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY"}, data_page_size=4096)
    write("many.delta.parquet", compression="gzip", use_dictionary=False, data_page_version="2.0",
          column_encoding={"text": "DELTA_BYTE_ARRAY"}, data_page_size=4096)
    write("many.plain.parquet", compression="snappy", use_dictionary=False, row_group_size=700)
    whole = pyarrow.table({"text": pyarrow.array([t or "" for t in MANY])},
                          pyarrow.schema([pyarrow.field("text", pyarrow.string(), nullable=False)]))
    write("many.whole.parquet", whole, compression="gzip", data_page_version="2.0")
    frame = polars.DataFrame({"n": range(len(MANY)), "text": MANY})
    frame.write_parquet(OUT / "many.polars.parquet", compression="zstd", statistics=False)
    frame.write_parquet(OUT / "many.polars2.parquet", compression="snappy", statistics=False, row_group_size=600)
    write("brotli.parquet", table.slice(0, 3), compression="brotli")
    write("none.parquet", table.slice(0, 0))
    words = pyarrow.table({"text": text.dictionary_encode(), "n": table["n"]})
    with pyarrow.ipc.new_stream(str(OUT / "many.words.arrow"), words.schema) as f:
        f.write_table(words, max_chunksize=400)
    frame.select(polars.col("n").cast(str), "text").slice(0, 40).write_ipc(OUT / "views.arrow")
    with gzip.GzipFile(OUT / "views.jsonl.gz", "wb", mtime=0) as f:
        f.write(b"".join(lines.splitlines(True)[:40]))


def questions():
    with open(OUT / "hellaswag.jsonl", "w") as f, open(OUT / "hellaswag.made.jsonl", "w") as g:
        for label, a, b, endings, right in QUESTIONS:
            json.dump({"ind": 24, "activity_label": label, "ctx_a": a, "ctx_b": b,
                       "ctx": a + " " + b, "endings": endings, "label": right}, f)
            json.dump({"ctx": preprocess(label + ": " + a + " " + b.capitalize()),
                       "endings": [preprocess(e) for e in endings], "label": int(right)}, g)
            f.write("\n")
            g.write("\n")


def tensors():
    a = {"w": numpy.arange(6, dtype="f4").reshape(2, 3), "b": numpy.ones(3, "f2"),
         "layers.0.e": numpy.zeros((2, 1, 4), "i8"), "none": numpy.zeros((0, 3), "f4")}
    save_file(a, OUT / "small.safetensors", {"format": "pt"})


OUT.mkdir(exist_ok=True)
for make in npy, bins, jsonl, coded, tables, parquet, questions, tensors:
    make()
