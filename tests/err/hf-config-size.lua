axes { batch=2, seq=8, hidden=4, vocab=16 }
local x = embed(input("tokens", "batch seq"), param("embed", "vocab hidden"))
hf {
  config = { model_type="none", vocab_size=size("vocab"), hidden_size=8 },
  ["embed"] = { "model.embed_tokens.weight", "vocab hidden" },
}
loss("l", mean(x * x, "batch seq hidden"))
