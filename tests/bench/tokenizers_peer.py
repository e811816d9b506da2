"""The tokenizers library on one thread: MB/s, tokens, the same files as ours.

    python3 tests/bench/tokenizers_peer.py tokenizer.json FILE ...
"""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
try:
    import tokenizers
except ImportError:
    sys.exit("(no tokenizers library for this Python)")

tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
texts = [open(f, encoding="utf-8", newline="").read() for f in sys.argv[2:]]
size = sum(len(t.encode()) for t in texts)
best = float("inf")
for _ in range(3):
    start = time.perf_counter()
    out = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    best = min(best, time.perf_counter() - start)
print(f"{size / best * 1e-6:.2f} MB/s tokenizers {tokenizers.__version__}, "
      f"{sum(len(x.ids) for x in out)} tokens")
