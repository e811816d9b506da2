-- Gradients that are worked out by hand: of w and norm a constant times the mean
-- a of a sequence's numbers, of root 0.5 sqrt(a / root). Without numbers, a = 0,
-- the last is 0 / 0 where the loss is finite; below 0 the loss is not a number;
-- near 50000 the loss alone is infinite; above a million the gradient is finite
-- and its square is not.
axes { batch=1, seq=3, tall=3, wide=5 }
local t = input("tokens", "batch seq")
local a = mean(f32(t), "batch seq")
local big = where(gt(a, 1e6), 1e200, 1)
local w = param("w", "tall wide", normal(1))
local norm = param("norm", "tall", ones)
local root = param("root", "wide tall", ones)
local c = f32(iota("tall")) - 1 + f32(iota("wide")) / 2
loss("linear", (sum(w * c, "tall wide") + sum(norm * (f32(iota("tall")) + 1), "tall")) * a * big / 64)
loss("root", sum(sqrt(root * a), "tall wide") / 16, 0.5)
loss("far", where(land(gt(a, 4e4), lt(a, 6e4)), inf, 0))
local seen = state("seen", "", zeros)
update(seen, seen + mean(f32(t), "batch seq"))
train { steps=9, batch=4 }
