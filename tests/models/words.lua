-- Functions of the language that are made of others, on parameters: what each gives is a
-- state after a step. The loss leads through all of them.
axes { batch=2, seq=16, dim=8, heads=2, tap=4, long=30, many=4096, vocab=256 }
local x = param("x", "seq heads dim", normal(1))
local w = param("w", "heads dim tap", normal(1))
local tokens = input("tokens", "batch seq")
local number = iota("seq") * 7 - 40                      -- -40 .. 65
local at = mod(iota("seq") * 5, 16)
local doc = cumsum(where(eq(mod(at, 4), 0), 1, 0), "seq")

local made = {}
local function keep(name, axes, t)
  update(state(name, axes), t)
  return t
end
local function of_x(name, t, axes)
  keep(name, axes or "seq heads dim", t)
  made[#made + 1] = sum(t, axes or "seq heads dim")
end

keep("floor", "seq heads dim", floor(x * 3))
keep("real_floor", "seq heads dim", x // 0.3)
keep("int", "seq", int(f32(number) / 4 + 0.1))
keep("down", "seq", number // 6 + 0)
keep("down_negative", "seq", number // -6)
keep("xor", "seq", xor(number, at * 9))
keep("doc", "seq", doc)
keep("begin", "seq", cummax(where(eq(mod(at, 4), 0), iota("seq"), 0), "seq"))
keep("iota", "ten", iota("ten", 10))
of_x("cummax", cummax(x, "seq"))
of_x("conv", conv(x, w, "seq", "tap") * x)
local most, e = sort(x, "seq")
of_x("sort", most * f32(iota("seq", x)))
keep("order", "seq heads dim", e)
of_x("scatter_max", maximum(scatter_max(x, mod(at, 3), iota("bin", 4) * 0 + sum(x * 0, "seq"), "bin"), -9), "heads dim bin")
of_x("rmsnorm", scope("r", rmsnorm, x, "heads dim") * x)
of_x("rope_part", rope(x, "dim", "seq", 1e4, { part=0.5 }) * x)
of_x("rope_at", rope(x, "dim", doc * 3, 1e4) * x)
local list = {}
for i = 1, 30 do list[i] = rename(slice(x, "seq", i % 16, 1), { seq="long" }) * i end
of_x("concat", concat(list, "long"), "long heads dim")

-- Moments of random numbers, of neighbours and of two calls
local wide = tokens + iota("many")
local function moments(name, t, other)
  keep(name .. "1", "", mean(t, "batch seq many"))
  keep(name .. "2", "", mean(t * t, "batch seq many"))
  keep(name .. "3", "", mean(t * t * t, "batch seq many"))
  keep(name .. "_next", "", mean(t * shift(t, "many", 1, true), "batch seq many"))
  keep(name .. "_place", "", mean(t * shift(t, "seq", 1, true), "batch seq many"))
  keep(name .. "_other", "", mean(t * other, "batch seq many"))
end
for _, kind in ipairs { "uniform", "normal", "gumbel" } do
  moments(kind, random(kind, wide), random(kind, wide))
end

local u = random("uniform", tokens) + 0.1 * random("normal", tokens)
local y = dot(x, param("v", "heads dim", normal(1)), "heads dim")
loss("noise", mean((y * (1 + u) + random("gumbel", y)) ^ 2, "batch seq"))
for i, t in ipairs(made) do loss("l" .. i, t, 0.1) end
loss("lm", mean(cross_entropy(y * param("head", "vocab", normal(1)), tokens, "vocab"), "batch seq"))
train { clip=0 }
