-- the gradient of w0 is made on the second stage, w0 is read on the first: m and v lie with w0
axes { batch=7, seq=7, hidden=8, vocab=7 }
local t2 = embed(input("tokens", "batch seq"), param("w0", "vocab hidden", 1))
local function layer0(x)
  return x + 1
end
t2 = scope("layers", function() return scope("0", layer0, t2) end)
loss("l0", mean(t2, "batch seq hidden"), 1)
