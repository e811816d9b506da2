-- Two FP8 matrices with a scale for each block of 128 x 128, as DeepSeek publishes its
-- weights; sizes that blocks do not divide. make.py writes the files.
axes { batch=2, seq=4, hidden=150, wide=140, vocab=16 }

local tokens, labels = mod(input("tokens", "batch seq"), 16), mod(input("labels", "batch seq"), 16)
local x = embed(tokens, param("embed", "vocab hidden"))
local up, down = param("up", "hidden wide"), param("down", "wide hidden")
local y = x + dot(silu(dot(x, up, "hidden")), down, "wide")
loss("lm", mean(cross_entropy(f32(dot(y, param("head", "hidden vocab"), "hidden")), labels, "vocab"), "batch seq"))

hf {
  ["embed"] = { "embed.weight", "vocab hidden" },
  ["up"]    = { "up.weight", "wide hidden" },
  ["down"]  = { "down.weight", "hidden wide" },
  ["head"]  = { "head.weight", "vocab hidden" },
}
