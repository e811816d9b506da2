-- pleat compile % target=cuda precision=bf16 -o /dev/null
axes { batch=2, seq=512, hidden=64 }
local x = input("x", "batch seq hidden")
local q, k = x * param("scale", "hidden"), rename(x, { seq="key" })
loss("l", mean(attention(dot(f32(q), f32(k), "hidden") / 8, k, "key"), "batch seq hidden"))
