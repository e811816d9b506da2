-- a codebook that follows the mean of its vectors, a mean of squares: products
-- over batch in updates and a metric, of data, parameters and both
axes { batch=4, seq=3, hidden=5, code=7, other=5, vocab=11 }
local tokens = input("tokens", "batch seq")
local x = embed(tokens, param("embed", "vocab hidden", normal(0.7)))
local codes, count = state("codes", "code hidden", 0.3), state("count", "code", ones)
local e = index(mod(tokens, 7), "code")
local hit = f32(one_hot(e))
update(count, 0.9 * count + 0.1 * sum(hit, "batch seq"))
update(codes, 0.9 * codes + 0.1 * dot(hit, x, "batch seq") / (sum(hit, "batch seq") + 1))
local square = state("square", "hidden other", 0.1)
update(square, 0.5 * square + dot(x, rename(x, {hidden="other"}), "batch seq"))
local b = param("b", "batch hidden", normal(0.5))
local s = state("s", "hidden", 0.2)
update(s, 0.5 * s + tanh(dot(b, mean(x, "seq"), "batch")) + dot(b, b, "batch"))
metric("m", dot(x, gather(codes, e), "batch seq hidden"))
loss("l", mean((x - gather(codes, e))^2 + dot(b, square, "hidden"), "batch seq hidden other"))
