-- pleat compile % target=cuda precision=bf16 -o /dev/null
axes { batch=2, seq=64, hidden=32 }
local x = input("x", "batch seq hidden")
local k = rename(x, { seq="key" })
local bias = param("bias", "seq") * f32(iota("key", k))
loss("l", mean(attention(dot(x * param("scale", "hidden"), k, "hidden") + bias, k, "key"), "batch seq hidden"))
