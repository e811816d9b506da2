-- pleat compile % target=cuda precision=bf16 -o /dev/null
axes { batch=4, seq=256, hidden=250, expert=8, ffn=516, vocab=64 }
local x = embed(input("x", "batch seq", "i32"), param("emb", "vocab hidden"))
local g, e = topk(softmax(dot(x, param("gate", "hidden expert"), "hidden"), "expert"), 2, "expert")
local h = silu(dot(x, param("w1", "expert hidden ffn")[e], "hidden"))
local y = sum(g * dot(h, param("w2", "expert ffn hidden")[e], "ffn"), "top")
loss("l", mean(y * y, "batch seq hidden"))
