-- w1: the first chunk whose forward reads it was not the first stage that reads it
axes { batch=2, seq=2, hidden=2, vocab=9, key1=2, bucket2=4 }
local t1 = param("w0", "vocab hidden", 1)
local t2 = embed(input("tokens", "batch seq"), t1)
local function layer0(x)
  return attention(iota("batch") - rename(iota("batch"), {batch="key3"}), rename(t2, {batch="key3"}), "key3")
end
t2 = scope("layers", function() return scope("0", layer0, t2) end)
loss("lm", mean(cross_entropy(dot(t2, param("w3", "hidden vocab", 0.5), "hidden"), input("labels", "batch seq"), "vocab"), "batch seq"))
loss("l0", mean(gather(param("w1", "bucket2", 1), iota("hidden"), "bucket2") * rename(t1, {hidden="key1"}), "hidden key1 vocab"), 1)
