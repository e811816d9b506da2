-- axes of a model named as those that layers of the prelude made
axes { batch=2, seq=4, token=8, slot=8, expert=8, nodes=2, top=6, d=4, d_half=3, d_two=5, member=8 }
local x = param("x", "batch seq token", normal(1))
local q = rope(dot(x, param("a", "token d"), "token"), "d", "seq", 1e4)
local w = param("w", "d_half d_two member top", normal(1))
local logits = dot(x, param("gate", "token expert"), "token")
local y = expert_choice(x, logits, 2, "expert", "batch seq", function(rows)
  return rename(dot(rows, param("w1", "expert token member"), "token"), {member="token"})
end)
local p = softmax(logits, "expert")
loss("b", balance_loss(p, 2, "expert", "batch seq"))
loss("q", mean(q * q, "batch seq d") + mean(w * w, "d_half d_two member top"))
loss("l", mean(y * y, "batch seq token"))
