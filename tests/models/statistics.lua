-- What a step counts once, whoever runs it: a loss of parameters only, a
-- denominator that is the same in every micro-batch, another that reads places,
-- statistics of every kind in metrics and in the update of a state.
axes { batch=2, seq=8, hidden=6, vocab=97 }
local tokens = input("tokens", "batch seq")
local w, seen = param("w", "vocab hidden"), state("seen", "hidden")
local x = embed(tokens, w) * param("scale", "hidden", ones)
local place = f32(iota("seq"))
local late = where(gt(iota("seq"), 3), f32(tokens), 0)
loss("rows", sum(x * x * exp(-place), "batch seq hidden"), 1, sum(late, "batch seq"))
loss("even", mean(tanh(x), "batch seq hidden"), 0.25, sum(exp(place / 8), "seq"))
loss("decay", sum(w * w, "vocab hidden"), 0.5)
metric("least", min(x, "batch seq hidden"))
metric("most", max(x, "batch seq hidden"))
metric("along", sum(mean(x, "batch hidden") * place, "seq"))
update(seen, 0.5 * seen + mean(x, "batch seq") - min(x, "batch seq") / 3 + f32(iota("hidden")))
