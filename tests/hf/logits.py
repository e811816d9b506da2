"""Does transformers read what `pleat ckpt export-hf` writes, and compute the same?

    python3 tests/hf/logits.py CASE FOLDER [--save]

FOLDER is the export of a run that was imported from CASE's weights (convert.sh
makes some). Its config.json is written here, from CASE.json. The logits of the
folder's model must be those of the weights themselves, to the bit; --save keeps
those of the last positions as CASE.logits.safetensors, which export_test compares
with ours. Layers that predict further tokens (MTP) are not in transformers.
"""
import json
import pathlib
import re
import sys
import tempfile

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

from make import HERE, KEPT, no_float32, only_float64


def further(name, config):
    at = re.match(r"model\.layers\.(\d+)\.", name)
    return at and int(at[1]) >= config["num_hidden_layers"]


def logits(folder, config):
    (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager",
        experts_implementation="eager", output_loading_info=True)
    for what in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        left = [k for k in info[what] if "inv_freq" not in k and not further(k, config)]
        if left:
            raise SystemExit(f"{folder}: {what}: {left}")
    rows = torch.from_numpy(numpy.load(HERE / "tokens.npy")).long()
    with torch.no_grad(), no_float32():
        return model.eval()(input_ids=rows[:, :-1]).logits


def main():
    name, folder = sys.argv[1:3]
    only_float64()
    config = json.loads((HERE / f"{name}.json").read_text())["config"]
    got = logits(folder, config)
    with tempfile.TemporaryDirectory() as d:
        save_file(load_file(HERE / f"{name}.safetensors"), d + "/model.safetensors",
                  {"format": "pt"})
        want = logits(d, config)
    worst = (got - want).abs().max().item()
    print(f"{name} {folder}: logits differ by {worst} at most, of {want.abs().max():.3f}")
    if worst:
        raise SystemExit(1)
    if "--save" in sys.argv:
        save_file({"logits": got[:, -KEPT:].contiguous()},
                  HERE / f"{name}.logits.safetensors")


main()
