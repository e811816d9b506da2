-- Layers of the language on parameters: what each gives is a state after a step.
axes { batch=1, seq=7, dim=16 }
local x = param("x", "seq dim", normal(1))
local z = param("z", "seq dim", normal(0.02))
local tokens = input("tokens", "batch seq")
local function keep(name, axes, t) update(state(name, axes), t) end
local function at_keys(t) return rename(t, {seq="key"}) end
local given = { factor=8, original=1024, beta_fast=4, beta_slow=0.5, attention_factor=1.5 }

keep("rope", "seq dim", rope(x, "dim", "seq", 1e4))
keep("rope_neighbours", "seq dim", rope(x, "dim", "seq", 1e4, { interleaved=true }))
keep("rope_yarn", "seq dim", rope(x, "dim", "seq", 1e4, { yarn={ factor=8, original=4096 } }))
keep("rope_yarn_given", "seq dim", rope(x, "dim", "seq", 1e4, { yarn=given }))
keep("rmsnorm", "seq dim", scope("r", rmsnorm, z, "dim"))
keep("rmsnorm_eps", "seq dim", scope("re", rmsnorm, z, "dim", 1e-3))
keep("layernorm", "seq dim", scope("l", layernorm, z, "dim"))
keep("softmax", "seq dim", softmax(x, "dim"))
keep("swiglu", "seq dim", swiglu(x, z))
keep("logsumexp", "seq", logsumexp(x, "dim"))
keep("cross_entropy", "seq", cross_entropy(x, mod(iota("seq") * 5, 17) - 1, "dim"))

local scores = dot(x, at_keys(x), "dim") / 4
local ago = iota("seq") - at_keys(iota("seq"))
keep("causal", "seq dim", attention(causal(scores, "seq", "key"), at_keys(z), "key"))
keep("window", "seq dim",
  attention(where(land(ge(ago, 0), lt(ago, 3)), scores, -inf), at_keys(z), "key"))

-- Equal values share the gradient of the largest, and of the least.
loss("tied", sum(max(param("tied", "seq dim", ones), "dim"), "seq"))
loss("tied_least", sum(min(param("tied_least", "seq dim", ones), "dim"), "seq"), 2)
loss("l", sum(x * z, "seq dim") * mean(f32(tokens), "batch seq"))
train { clip=0 }
