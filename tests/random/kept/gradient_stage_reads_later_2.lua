-- seed 1335: as gradient_stage_reads_later, where nothing is recomputed
axes { batch={ 3, }, seq=4, hidden=7, vocab=5 }
local t2 = param("x12", "batch seq hidden", normal(1))
local function layer0(x)
  local t4 = param("w1", "batch seq vocab", normal(0.7))
  return x + mean(tanh(scatter_add(t2, mod(iota("hidden"), 5), t4, "vocab") * t4), "vocab")
end
for i = 0, 1 do
  t2 = scope("layers." .. i, layer0, t2)
end
loss("lm", mean(cross_entropy(dot(t2, param("w2", "hidden vocab", normal(0.5)), "hidden"), input("labels", "batch seq"), "vocab"), "batch seq"))
