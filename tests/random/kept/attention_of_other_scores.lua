-- scores with parts that no attention kernel makes: the body is taken, not the kernel
axes { batch=2, seq=5, h=4, vocab=7, key=5 }
local x = embed(input("tokens", "batch seq"), param("embed", "vocab h", normal(1)))
local k = rename(x, { seq="key" })
local s = dot(x, k, "h") * 0.5
local y = attention(s + dropout(s * 2, 0.3), k, "key") + attention(s - softmax(s, "key"), k, "key")
loss("l", mean(tanh(y), "batch seq h"))
