-- pleat compile % route.clones=1 -o /dev/null
axes { batch=4, seq=8, hidden=8, expert=4, ffn=8, vocab=16 }
local x = embed(input("x", "batch seq", "i32"), param("emb", "vocab hidden"))
local g, e = topk(softmax(dot(x, param("gate", "hidden expert"), "hidden"), "expert"), 2, "expert")
local h = silu(dot(x, param("w1", "expert hidden ffn")[e], "hidden"))
local y = sum(g * dot(h, param("w2", "expert ffn hidden")[e], "ffn"), "top")
loss("l", mean(y * y, "batch seq hidden"))
