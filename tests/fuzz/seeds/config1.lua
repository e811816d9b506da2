-- keys of this run
return {
  ["train.steps"] = "4",
  ["train.batch"] = "8",
  ["train.lr"] = "0.01",
  ["train.eval_steps"] = "2",
  ["train.save_every"] = "2",
  ["data.train"] = "text",
  ["data.valid"] = "tail:0.1",
  ["hf.config"] = "{"model_type": "tiny", "names": ["a\"b"]}",
  ["name"] = "run",
}
