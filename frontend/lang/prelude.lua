-- The layers of the language, written in it. composite(name, f, ...) makes one
-- node that carries f's meaning: a target with kernels for `name` uses them, any
-- other opens it. need(name, x, axis) refuses, in that name, an x without the axis; of
-- which kind arguments are, and the fields of options, takes.def says.
-- own_axis(name, size) names an axis that is none of the model's.
-- Layers compute in f32 and give back the dtype they got. module(name, f, ...) says
-- which of the modules of train.recompute it is.

-- Names of other languages, and the expression that takes their place
absent = {
  ["name name .."]='expression',
  ["clamp clip"]='minimum(maximum(x, low), high)',
  ["einsum matmul mm bmm linear"]='dot(x, w, "axes to sum")',
  ["scan cumprod associative_scan"]='log2(n) steps of shift(x, axis, 1), shift(x, axis, 2), ..; of sums cumsum(x, axis)',
  ["recur loop"]='a for loop of Lua, or log2(n) steps of shift(x, axis, 1), shift(x, axis, 2), ..',
  ["grad backward"]='optimizer(name, function(p, g, s, h) .. end), whose g is a gradient',
  ["reshape view flatten rearrange"]='split(x, axis, "a b"), merge(x, "a b", axis)',
  ["transpose permute unsqueeze squeeze expand"]='rename(x, { old="new" }); axes have names and no order',
  ["stack"]='concat(list, axis) of tensors with an axis of size 1',
  ["chunk narrow"]='slice(x, axis, start, len)',
  ["pad"]='concat(x, zeros of its other axes, axis), or shift(x, axis, n), where zeros enter',
  ["roll"]='shift(x, axis, n, true)',
  ["argsort"]='the second result of sort(x, axis)',
  ["argmin"]='argmax(-x, axis)',
  ["tril triu masked_fill"]='where(le(iota("key"), iota("seq")), x, -inf)',
  ["detach no_grad"]='stop_gradient(x)',
  ["arange"]='iota(axis, n)',
  ["zeros_like ones_like full_like"]='x * 0, or a number, which meets any axes',
  ["rand randn bernoulli"]='random("uniform", x), random("normal", x)',
  ["embedding"]='embed(ids, table)',
  ["index_select take"]='gather(x, e, axis)',
  ["scatter"]='scatter_add(v, e, like), scatter_max(v, e, like)',
  ["conv1d"]='conv(x, w, "seq", "tap")',
  ["log_softmax"]='x - logsumexp(x, axis)',
  ["logsigmoid"]='-softplus(-x)',
  ["std var"]='mean(c * c, axes), where c = x - mean(x, axes)',
  ["prod"]='exp(sum(log(x), axes))',
  ["norm"]='sqrt(sum(x * x, axes))',
  ["round"]='floor(x + 0.5)',
  ["ceil"]='-floor(-x)',
  ["trunc"]='int(x)',
  ["square"]='x * x',
  ["exp2"]='2 ^ x',
  ["logical_and logical_or logical_not"]='land(a, b), lor(a, b), lnot(a)',
  ["freeze"]='train.freeze=PATTERN, or stop_gradient(w)',
}

-- Does x have the axis? Also of an axis that nothing has
function has(x, axis)
  return axes_of(x):find(" " .. axis .. " ", 1, true) ~= nil
end

-- The command line's option.NAME, of the type of value, else the value
function option(name, value)
  local text = given_option(name)
  if text == nil then return value end
  local is = ({ ["1"]=true, ["true"]=true, ["0"]=false, ["false"]=false })[text]
  if type(value) == "string" then is = text
  elseif type(value) == "number" then is = tonumber(text) end
  if is == nil or math.type(value) == "integer" and math.type(is) ~= "integer" then
    local kinds = { integer="a whole number", float="a number", boolean="true or false" }
    error("option." .. name .. "=" .. text .. " must be " .. kinds[math.type(value) or type(value)] .. ", as " ..
      tostring(value) .. " is")
  end
  return is
end

local join = concat

-- concat(a, b, .., axis) or concat(list, axis), of any length
function concat(list, axis, ...)
  if type(list) ~= "table" then return join(list, axis, ...) end
  if #list == 0 then error("concat: the list is empty") end
  local parts = {}
  for i = 1, #list, 24 do
    local part = { unpack(list, i, math.min(i + 23, #list)) }
    part[#part + 1] = axis
    parts[#parts + 1] = join(unpack(part))
  end
  return #parts == 1 and parts[1] or concat(parts, axis)
end

-- Rows of a table; its first axis is the one looked up
function embed(ids, table)
  local axis, rest = axes_of(table):match("(%S+) (.*)")
  if not axis or rest == "" then error("embed: the table has one axis; it needs another") end
  role(axis, "vocab")
  return gather(table, ids, axis)
end

-- Sorted along axis, the largest first, and an index of where each element was
function sort(x, axis)
  need("sort", x, axis)
  return topk(x, size(x, axis), axis, axis)
end

-- The largest element up to each place along axis, in log2(n) steps
function cummax(x, axis)
  need("cummax", x, axis)
  local at, by = iota(axis, x), 1
  while by < size(x, axis) do
    x = where(lt(at, by), x, maximum(x, shift(x, axis, by)))
    by = 2 * by
  end
  return x
end

-- A causal convolution of n taps: the sum over i of w at tap i times x at n - 1 - i
-- places before, zeros before the first
function conv(x, w, axis, tap)
  need("conv", x, axis)
  need("conv", w, tap)
  local n, b, c = size(w, tap), f32(x), f32(w)
  local y = b * sum(slice(c, tap, n - 1, 1), tap)
  for back = 1, n - 1 do
    y = y + shift(b, axis, back) * sum(slice(c, tap, n - 1 - back, 1), tap)
  end
  return as(y, x)
end

-- The largest v where e points, along the axes of `like`; -inf where no e points
function scatter_max(v, e, like, axis)
  local y, over = where(one_hot(e, axis), v, -inf), ""
  for a in axes_of(y):gmatch("%S+") do
    if not has(like, a) then over = over .. " " .. a
    elseif size(y, a) ~= size(like, a) then error("scatter_max: axis '" .. a .. "' is another in like") end
  end
  return max(y, over)
end

-- A random number for each element of x, fp32: others in each step and micro-batch, the
-- same in every fold. uniform: in [0, 1)
function random(kind, x)
  if kind == "uniform" then return drawn(x) end
  if kind == "normal" then                               -- Box and Muller 1958
    return sqrt(-2 * log(1 - drawn(x))) * cos(2 * math.pi * drawn(x))
  end
  if kind == "gumbel" then return -log(-log(maximum(drawn(x), 2 ^ -25))) end
  error("random: no kind '" .. kind .. "' (uniform, normal, gumbel)")
end

-- [.., axis] -> the same; rows sum to 1
local function softmax_of(x, axis)
  local p = exp(x - stop_gradient(max(x, axis)))
  return p / sum(p, axis)
end

function softmax(x, axis)
  need("softmax", x, axis)
  return composite("softmax", softmax_of, x, axis)
end

function logsumexp(x, axis)
  need("logsumexp", x, axis)
  local m = stop_gradient(max(x, axis))
  return log(sum(exp(x - m), axis)) + m
end

-- x / rms(x) * weight. The weight is the parameter "weight", unless one is given:
-- rmsnorm(x, axis, eps) or rmsnorm(x, weight, axis, eps)
function rmsnorm(x, weight, axis, eps)
  if type(weight) == "string" then
    need("rmsnorm", x, weight)
    weight, axis, eps = param("weight", weight, ones), weight, axis
  end
  need("rmsnorm", x, axis)
  return module("layernorm", composite, "rmsnorm", function(a, w)
    local b = f32(a)
    return as(b * rsqrt(mean(b * b, axis) + (eps or 1e-5)), a) * w
  end, x, weight)
end

function layernorm(x, axis, eps)
  need("layernorm", x, axis)
  return module("layernorm", composite, "layernorm", function(a, w, bias)
    local b = f32(a)
    local c = b - mean(b, axis)
    return as(c * rsqrt(mean(c * c, axis) + (eps or 1e-5)), a) * w + bias
  end, x, param("weight", axis, ones), param("bias", axis, zeros))
end

local function gated(gate, up)
  return composite("swiglu", function(a, b) return silu(a) * b end, gate, up)
end

-- silu(gate) * up
function swiglu(gate, up)
  if of_experts(gate) then return module("moe_act", gated, gate, up) end
  return gated(gate, up)
end

-- YaRN (Peng et al. 2023): dimensions that turn less than beta_slow times in the
-- `original` positions are stretched by `factor`, those that turn more than beta_fast times
-- kept, those between mixed. `truncate` takes whole dimensions as the two ends.
local function yarn_frequency(freq, half, n, theta, y)
  local original = y.original or y.original_max_position_embeddings
  if not original then error("rope: yarn: 'original' is missing (how many positions it was trained on before)") end
  if theta <= 1 then error("rope: yarn needs a theta above 1") end
  local function turns(rotations)                        -- the dimension that turns so often
    return n * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))
  end
  local low, high = turns(y.beta_fast or 32), turns(y.beta_slow or 1)
  if y.truncate ~= false then low, high = math.floor(low), math.ceil(high) end
  low, high = math.max(low, 0), math.min(high, n - 1)
  if low == high then high = high + 1e-3 end
  local slow = minimum(maximum((half - low) / (high - low), 0), 1)
  return freq * (1 - slow) + freq / y.factor * slow
end

-- What multiplies the rotated: attention_factor, or 0.1 ln(factor) + 1, or with both
-- mscale and mscale_all_dim the quotient of 0.1 mscale ln(factor) + 1 for the two
local function yarn_scale(y)
  local function grown(m) return y.factor > 1 and 0.1 * m * math.log(y.factor) + 1 or 1 end
  local one, all = y.mscale or 0, y.mscale_all_dim or 0
  return y.attention_factor or (one > 0 and all > 0 and grown(one) / grown(all) or grown(1))
end

-- Llama 3.1: dimensions that turn less than low_freq_factor times in the positions it was
-- trained on before are stretched, those that turn more than high_freq_factor times kept
local function llama3_frequency(freq, _, _, _, y)
  local low, high = y.low_freq_factor or 1, y.high_freq_factor or 4
  local turns = freq * (y.original_max_position_embeddings / (2 * math.pi))
  local kept = minimum(maximum((turns - low) / (high - low), 0), 1)
  return freq * kept + freq / y.factor * (1 - kept)
end

local stretched = {                                      -- by rope_type of a config.json
  linear=function(freq, _, _, _, y) return freq / y.factor end,
  llama3=llama3_frequency, yarn=yarn_frequency,
}

-- Which of these, and its numbers; nil: positions as they are
local function scaling_of(o)
  local y = o.yarn or o.scaling or {}
  local kind = o.yarn and "yarn" or y.rope_type or y.type or "default"
  if kind == "default" then return end
  if not stretched[kind] then error("rope: scaling: no type '" .. kind .. "' (linear, llama3, yarn)") end
  if not y.factor then error("rope: scaling: 'factor' is missing") end
  if kind == "llama3" and not y.original_max_position_embeddings then
    error("rope: scaling: 'original_max_position_embeddings' is missing")
  end
  return kind, y
end

local function turned(x, axis, pos, theta, o)
  local n = size(x, axis)
  local two, half = own_axis(axis .. "_two", 2), own_axis(axis .. "_half", n // 2)
  return composite("rope", function(a)
    local b = halves(a, axis, two, half, o.interleaved)
    local j = f32(iota(half))
    local freq = exp(j * (-2 * math.log(theta) / n))
    local kind, y = scaling_of(o)
    if kind then freq = stretched[kind](freq, j, n, theta, y) end
    local scale = kind == "yarn" and yarn_scale(y) or 1
    local at = type(pos) == "string" and iota(pos, a) or pos
    local angle, sign = f32(at) * freq, f32(iota(two)) * 2 - 1
    local c, s = cos(angle), sin(angle)
    if scale ~= 1 then c, s = c * scale, s * scale end
    s = o.interleaved and s * sign or sign * s             -- the order of b's axes
    local y = f32(b) * c + f32(shift(b, two, 1, true)) * s
    return merge(as(y, a), o.interleaved and half .. " " .. two or two .. " " .. half, axis)
  end, x)
end

-- Rotate pairs of x along axis by the position: along the axis pos, or the tensor pos. Pairs
-- are (j, j + n/2), or neighbours when interleaved. The pair j turns by pos * theta^(-2j/n).
-- options.part: the share of axis that turns, from its begin; n is its size.
function rope(x, axis, pos, theta, options)
  local o = options or {}
  need("rope", x, type(pos) == "string" and axis .. " " .. pos or axis)
  if not o.part then return turned(x, axis, pos, theta, o) end
  local all = size(x, axis)
  local n = math.floor(o.part * all + 1e-9)
  if n < 2 or n % 2 > 0 or n > all then
    error("rope: part=" .. o.part .. " of '" .. axis .. "' is " .. n .. "; an even number of its " .. all .. " turns")
  end
  local part = own_axis(axis .. "_part", n)
  local y = turned(rename(slice(x, axis, 0, n), { [axis]=part }), part, pos, theta, o)
  y = rename(y, { [part]=axis })
  return n == all and y or concat(y, slice(x, axis, n, all - n), axis)
end

-- Scores of keys after their query become -inf
function causal(s, query, key)
  need("causal", s, query)
  need("causal", s, key)
  return composite("causal", function(a)
    return where(le(iota(key, a), iota(query, a)), a, -inf)
  end, s)
end

-- dot(softmax(s, key), v, key), with everything square behind s; the logsumexp and the
-- largest of s along key
function attention(s, v, key)
  return module("core_attn", weigh, function(a, b)
    return dot(softmax_of(a, key), b, key)
  end, function(a) return logsumexp(f32(a), key) end, s, v, key)
end

-- -log softmax(logits)[label] in f32; label -1: no loss and no gradient. Logits of
-- the model's precision are rounded to it first; f32(logits) are not.
function cross_entropy(logits, labels, axis)
  need("cross_entropy", logits, axis)
  role(axis, "vocab")
  return composite("cross_entropy", function(a, label)
    local b = f32(stored(a))
    local z = b - stop_gradient(max(b, axis))
    local picked = gather(z, label, axis)
    return where(ge(label, 0), log(sum(exp(z), axis)) - picked, 0)
  end, logits, labels)
end

-- Routers: what keeps experts equally busy. `tokens` are the axes counted over;
-- p [.., axis] are a router's probabilities and k how many it chooses. Counted
-- are the k best of p itself, whatever bias or groups the choice had.

local function shares(p, k, axis, tokens)
  local top = own_axis("top", k)
  local _, e = topk(p, k, axis, top)
  return mean(one_hot(e), tokens .. " " .. top)
end

-- E * sum_i mean(p_i) * share_i (Fedus et al. 2021): over "batch seq" the balance of a
-- micro-batch; over "seq" that of each sequence, then take the mean over "batch"
function balance_loss(p, k, axis, tokens)
  need("balance_loss", p, axis .. " " .. tokens)
  return size(p, axis) * sum(mean(p, tokens) * shares(p, k, axis, tokens), axis)
end

-- The same with the shares of the whole step before, a state "load"
function global_balance_loss(p, k, axis, tokens)
  need("global_balance_loss", p, axis .. " " .. tokens)
  local load = state("load", axis, 1 / size(p, axis))
  update(load, shares(p, k, axis, tokens))
  return size(p, axis) * sum(mean(p, tokens) * load, axis)
end

-- mean(logsumexp(logits)^2): keeps logits small (Zoph et al. 2022)
function z_loss(logits, axis, tokens)
  need("z_loss", logits, axis .. " " .. tokens)
  local z = logsumexp(logits, axis)
  return mean(z * z, tokens)
end

-- After a step the state bias [axis], added to scores before the choice e, grows by
-- `rate` for experts with fewer pairs than the mean, shrinks for those with more (Wang
-- et al. 2024). `pairs`: all axes of e. Sums of counts are whole: equal ones give 0.
function balance_bias(bias, e, axis, pairs, rate)
  need("balance_bias", bias, axis)
  local counts = f32(sum(one_hot(e, axis), pairs))
  update(bias, bias + rate * sign(sum(counts, axis) - size(bias, axis) * counts))
end

-- After a step the state bias [axis], added to scores s before the choice of k, moves by the
-- share `rate` towards minus the quantiles at which equally many tokens choose each expert,
-- given the largest score that a token leaves out (Su 2026). Quantiles are along the axis
-- `tokens`; their means over `rest`, the other axes of tokens, and over micro-batches count.
function quantile_bias(bias, s, k, axis, tokens, rest, rate)
  need("quantile_bias", s, axis .. " " .. tokens .. " " .. rest)
  local n = size(s, tokens) * k // size(s, axis)
  if n < 1 or k >= size(s, axis) then
    error("quantile_bias: the mean is " .. n .. " of " .. size(s, tokens) .. " tokens an expert")
  end
  local top, slot = own_axis("top", k + 1), own_axis("slot", n + 1)
  s = f32(stop_gradient(s))
  local left_out = sum(slice(topk(s + bias, k + 1, axis, top), top, k, 1), top)
  local around = slice(topk(s - left_out, n + 1, tokens, slot), slot, n - 1, 2)
  update(bias, bias * (1 - rate) - rate * mean(mean(around, slot), rest))
end

-- -inf but for the n groups along axis whose `best` largest scores sum highest
-- (Liu et al. 2024)
function limit_groups(s, axis, groups, n, best)
  need("limit_groups", s, axis)
  local member = own_axis("member", size(s, axis) // size(groups))
  local of_best, kept = own_axis("top", best), own_axis("top", n)
  local byn = split(s, axis, groups .. " " .. member)
  local _, e = topk(sum(topk(byn, best, member, of_best), of_best), n, groups, kept)
  return merge(where(any(one_hot(e), kept), byn, -inf), groups .. " " .. member, axis)
end

-- Routers. From logits [.., axis] each gives weights g and indices e, both [.., top],
-- of the k chosen for `sum(g * dot(y, w2[e], "ffn"), "top")`, and p [.., axis], of
-- which balance_loss and global_balance_loss make what keeps experts equally busy.

-- Softmax over all, then the k best, whose weights sum to less than 1
function softmax_topk(logits, k, axis)
  need("softmax_topk", logits, axis)
  local p = softmax(f32(logits), axis)
  local g, e = topk(p, k, axis)
  return g, e, p
end

-- The k best, then softmax over them: g sums to 1
function topk_softmax(logits, k, axis)
  need("topk_softmax", logits, axis)
  local z = f32(logits)
  local g, e = topk(z, k, axis)
  return softmax(g, "top"), e, softmax(z, axis)
end

-- One expert, weighed by its probability (Fedus et al. 2021)
function softmax_top1(logits, axis)
  need("softmax_top1", logits, axis)
  return softmax_topk(logits, 1, axis)
end

-- Sigmoids; g sums to 1 (Liu et al. 2024). Only the choice sees options.bias, a state
-- [axis] that balance_bias changes, and with options.groups, a new axis, is made within
-- the `keep` groups whose `best` (2) largest sum highest.
function sigmoid_topk(logits, k, axis, options)
  need("sigmoid_topk", logits, axis)
  local o, s = options or {}, sigmoid(f32(logits))
  local c = stop_gradient(s) + (o.bias or 0)
  if o.groups and not o.keep then error("sigmoid_topk: 'keep' is missing: how many groups are kept") end
  if o.groups then c = limit_groups(c, axis, o.groups, o.keep, o.best or 2) end
  local _, e = topk(c, k, axis)
  local g = gather(s, e)
  return g / (sum(g, "top") + 1e-20), e, s / sum(s, axis)
end

-- Every expert takes the n tokens that want it most (Zhou et al. 2022). x [.., hidden] and
-- logits [.., axis] have the axes `tokens`; f makes of rows [axis slot hidden], n slots an
-- expert, their outputs. A token that nobody takes gets 0.
function expert_choice(x, logits, n, axis, tokens, f)
  need("expert_choice", logits, axis .. " " .. tokens)
  local count = 1
  for a in tokens:gmatch("%S+") do count = count * size(x, a) end
  local token, slot = own_axis("token", count), own_axis("slot", n, x, logits)
  local t, z = merge(x, tokens, token), merge(f32(logits), tokens, token)
  local g, e = topk(softmax(z, axis), n, token, slot)
  return split(scatter_add(g * f(gather(t, e)), e, t), token, tokens)
end

-- The token's own number chooses (Roller et al. 2021): e [..], for w[e], without weights
function hash_index(ids, axis)
  return index(mod(ids * 1009 + 7, size(iota(axis), axis)), axis)
end

-- dot(x, w, axes) and what parameters of low rank, w.lora_A and w.lora_B, add to it (Hu et
-- al. 2021): (alpha / rank) x A B. B begins at 0. w is a parameter, or one with an index.
function lora(x, w, axes, options)
  need("lora", x, axes)
  local o, n = options, options.rank
  local rank = own_axis("rank", n, x)
  local a, b = adapters(w, axes, rank, n, o.alpha or n)
  local z = o.dropout and dropout(x, o.dropout) or x
  return dot(x, w, axes) + dot(dot(z, a, axes) * ((o.alpha or n) / n), b, rank)
end

-- Optimizers: p, the gradient g after clipping, and the states are fp32 of one shape;
-- hyper has the numbers of the step. Each returns the new p and the new states.

-- Loshchilov and Hutter 2019, algorithm 2
optimizer("adamw", function(p, g, s, h)
  local rate, root = h.lr / h.correction1, rsqrt(h.correction2)
  local m = s.m * h.beta1 + g * (1 - h.beta1)
  local v = s.v * h.beta2 + g * g * (1 - h.beta2)
  return p * (1 - h.decay) - rate * m / (sqrt(v) * root + h.eps), { m=m, v=v }
end, { state={ m="moments", v="moments" } })

-- Momentum (Sutskever et al. 2013) as torch.optim.SGD has it, with decoupled decay
optimizer("sgd", function(p, g, s, h)
  local sum = s.momentum * h.momentum + g
  return p * (1 - h.decay) - h.lr * sum, { momentum=sum }
end, { state={ momentum="moments" } })

-- Chen et al. 2023
optimizer("lion", function(p, g, s, h)
  local d = sign(s.m * h.beta1 + g * (1 - h.beta1))
  return p * (1 - h.decay) - h.lr * d, { m=s.m * h.beta2 + g * (1 - h.beta2) }
end, { state={ m="moments" } })

-- Five steps towards the nearest orthogonal matrix (Jordan 2024) of each matrix of x
-- [.. rows cols], in bf16: y becomes (3.4445 I - 4.7750 A + 2.0315 A A) y with A = y y^T. The
-- first step divides by the norm, the root of A's trace. A product whose readers see it under
-- another name is stored in bf16 only.
local function orthogonal(x, h)
  local rows, cols = h.rows, h.cols
  if size(x, rows) > size(x, cols) then rows, cols = cols, rows end
  local to, via = own_axis(rows .. "_to", size(x, rows)), own_axis(rows .. "_via", size(x, rows))
  local diagonal, y = eq(iota(rows), iota(to)), bf16(x)
  for i = 1, 5 do
    local a = rename(dot(y, rename(y, { [rows]=via }), cols), { [via]=to })    -- [.. rows to]
    local scale = 1
    if i == 1 then
      scale = 1 / maximum(sqrt(sum(where(diagonal, f32(a), 0), rows .. " " .. to)), 1e-7)
      a = bf16(f32(a) * (scale * scale))
    end
    local aa = rename(dot(a, rename(a, { [rows]=to, [to]=via }), to), { [via]=to })
    local b = where(diagonal, 3.4445, 0) - f32(a) * 4.7750 + f32(aa) * 2.0315
    y = rename(dot(bf16(b * scale), y, rows), { [to]=rows })
  end
  return f32(y)
end

-- Jordan 2024 as torch.optim.Muon has it, with the size of AdamW's updates (Liu et al. 2025):
-- a matrix a head and an expert; vectors, embeddings and heads of a vocabulary by AdamW
optimizer("muon", function(p, g, s, h)
  local m = s.m * h.momentum + g * (1 - h.momentum)
  local d = orthogonal(g * (1 - h.momentum) + m * h.momentum, h)
  local long = math.max(size(p, h.rows), size(p, h.cols))
  return p * (1 - h.decay) - h.lr * (0.2 * math.sqrt(long)) * d, { m=m }
end, { state={ m="moments" }, others="adamw" })

-- Shazeer and Stern 2018 as transformers' Adafactor with scale_parameter: the second moment is
-- the product of a number a row and a number a column; the updates of a matrix have a root mean
-- square of at most 1, times that of the matrix
optimizer("adafactor", function(p, g, s, h)
  local keep, square = 1 - exp(-0.8 * log(h.step + 1)), g * g + 1e-30
  local axes = (h.rows or "") .. " " .. (h.cols or "")
  local d, row, col
  if h.rows then
    row = s.row * keep + mean(square, h.cols) * (1 - keep)
    col = s.col * keep + mean(square, h.rows) * (1 - keep)
    d = g * rsqrt(row / mean(row, h.rows)) * rsqrt(col)
  else
    row, col = s.row * keep + square * (1 - keep), s.col
    d = g * rsqrt(row)
  end
  local size = maximum(sqrt(mean(p * p, axes)), 1e-3)
  d = d / maximum(sqrt(mean(d * d, axes)), 1)
  return p * (1 - h.decay * size) - h.lr * size * d, { row=row, col=col }
end, { state={ row="fp32 of rows", col="fp32 of cols" } })
