-- pleat compile % target=cuda precision=bf16 -o /dev/null
axes { batch=8, seq=1024, hidden=2050, ffn=4096, vocab=64 }
local x = embed(input("x", "batch seq", "i32"), param("emb", "vocab hidden"))
local h = silu(dot(x, param("w1", "hidden ffn"), "hidden"))
local y = dot(h, param("w2", "ffn hidden"), "ffn")
loss("l", mean(y * y, "batch seq hidden"))
