-- Weights used twice: one block in each of four layers, whose state counts once, and again by name after
-- them; sizes from the command line.
axes { batch=2, seq=8, hidden=16, ffn=24, vocab=32 }
local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(mod(tokens, 32), param("embed", "vocab hidden", normal(0.3)))

local function block(x)
  local h = scope("norm", rmsnorm, x, "hidden")
  return x + dot(silu(dot(h, param("up", "hidden ffn", normal(0.3)), "hidden")), param("down", "ffn hidden", normal(0.3)), "ffn")
end

for i = 0, option("layers", 4) - 1 do
  x = scope("layers", i, function(y)
    y = again("block", block, y)
    return y * param("scale", "hidden", ones)
  end, x)
end
x = again("block.norm", rmsnorm, x, "hidden")
loss("lm", mean(cross_entropy(dot(x, param("head", "hidden vocab"), "hidden"), mod(labels, 32), "vocab"), "batch seq"))
