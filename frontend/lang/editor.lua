---@meta
-- The language: what editors (LuaLS) show of it beside a model, and what `pleat help
-- language` and `pleat help topk` print. Above each function stand its meaning and, indented,
-- shapes, gradient and an example, the last line, which tests/unit/language_test traces with
-- x [batch seq hidden], ids [batch seq] (integers), w [hidden], W [expert hidden dim],
-- s (a state [expert]), p [batch seq expert], g, e = topk(p, 2, "expert"), c = lt(x, 0),
-- q [batch seq dim], k = rename(q, { seq="key" }), sc = dot(q, k, "dim").

---@class Tensor
---@operator add(Tensor|number): Tensor
---@operator sub(Tensor|number): Tensor
---@operator mul(Tensor|number): Tensor
---@operator div(Tensor|number): Tensor
---@operator mod(Tensor|number): Tensor
---@operator idiv(Tensor|number): Tensor
---@operator pow(number): Tensor
---@operator unm: Tensor
---@field [Index] Tensor
---@class Index: Tensor

---@alias Operand Tensor|number
---@class Initial

-- Declarations

---Names and sizes of axes. A table in place of a number says what an axis is for and what cuts it.
---
---    axes { heads=16, inner={ 64, role="ffn", shard="tp" } }
---@param sizes table<string, integer>
function axes(sizes) end
---A tensor that changes with every micro-batch. dtype "i32" is that of "tokens" and "labels", which come from
---data.train, "real" (or "f32", "bf16", "u8", "bool") that of others. The axes of the first integer input are batch and seq.
---
---    -> [axes]
---    local mask = input("mask", "batch seq", "real")
---@param name string @param axes string @param dtype? string @return Tensor
function input(name, axes, dtype) end
---A weight under the path of the scopes around it; normal(0.02) if not told.
---
---    -> [axes]
---    gradient: reduced over the ranks that hold it, for the optimizer
---    local w1 = param("w1", "hidden dim", normal(0.006))
---@param path string @param axes string @param init? Initial|number @return Tensor
function param(path, axes, init) end
---A value that only update() changes; zeros if not told. It is saved with the weights.
---
---    -> [axes]
---    gradient: none
---    local load = state("load", "expert", 1/4)
---@param path string @param axes string @param init? Initial|number @return Tensor
function state(path, axes, init) end
---The state's value from the next step on: of data only what is reduced over the batch.
---
---    s [axes], value [axes]
---    update(s, sum(one_hot(e), "batch seq top"))
---@param s Tensor @param value Tensor
function update(s, value) end
---An optimizer of the parameters that match options.params, or of all others where train.optimizer names it. f makes
---the new parameter and a table of the new states of p, its gradient g after clipping, the states s, 0 at first (all
---fp32, of p's axes), and the step's numbers h: tensors lr, decay (lr times weight decay), step (since the states were
---0), correction1 and correction2 (1 - beta^(step + 1)); numbers beta1, beta2, eps, momentum; h.rows and h.cols: names of
---the last two axes of p beside experts and heads (of a vector h.cols alone, of a scalar none). options.state: names of
---the states, each "fp32" or "moments" (as precision.moments says), with " of rows" or " of cols" behind it for a state
---without the columns, or rows, of a matrix. options.others: f takes matrices only (no tables of a vocabulary or of
---positions, none that an index looks up) and that optimizer the other parameters. An elementwise f runs on ZeRO's
---shards; another has its states whole on every rank that has the parameter.
---
---    optimizer("signs", function(p, g, s, h) return p - h.lr * sign(g), {} end)
---@param name string @param f fun(p: Tensor, g: Tensor, s: table<string, Tensor>, h: table): Tensor, table
---@param options? table
function optimizer(name, f, options) end
---The step's loss is the sum over all losses of weight * t / den, both summed over micro-batches.
---
---    t []
---    gradient: starts here
---    loss("aux", mean(x * x, "batch seq hidden"), 0.01)
---@param name string @param t Tensor @param weight? number @param den? Tensor
function loss(name, t, weight, den) end
---A number of each step, printed and kept in metrics.jsonl.
---
---    t []
---    metric("busiest", max(mean(one_hot(e), "batch seq top"), "expert"))
---@param name string @param t Tensor
function metric(name, t) end
---What generate, logits and eval read: "logits".
---
---    t [batch seq ..]
---    output("logits", x)
---@param name string @param t Tensor
function output(name, t) end
---f(...), with name in front of the paths made inside. scope(name, i, f, ...): one of a row of layers, a unit
---that fold.pp cuts, as is "layers.3"; { name, i, kind="mtp" }: one that predicts a token further.
---
---    -> what f returns
---    local y = scope("norm", rmsnorm, x, "hidden")
---@param name string|table @param f function|integer @param ... any
function scope(name, f, ...) end
---f(...), whose parameters and states have name in front of their paths in place of the scopes around, and are the same
---in every call and in scope(name, ..): weights used twice. In scope("layers", i, again, "block", f, x) each call is a layer.
---
---    -> what f returns
---    gradient: of the parameters, added up over the calls
---    local y = scope("second", again, "norm", rmsnorm, again("norm", rmsnorm, x, "hidden"), "hidden")
---@param name string @param f function @param ... any
function again(name, f, ...) end
---A number, a string or a truth value of the model: value, or that of option.NAME=.. on the command line.
---
---    local layers = option("layers", 24)
---@generic T @param name string @param value T @return T
function option(name, value) end
---f(...), whose values belong to a module that train.recompute=moe,layernorm names: mla_up_proj, shared_experts, mlp,
---moe. (rmsnorm and layernorm are layernorm, attention is core_attn, swiglu of experts is moe_act by themselves.)
---
---    -> what f returns
---    local y = scope("mlp", module, "mlp", function(a) return silu(a) * a end, x)
---@param name string @param f function @param ... any
function module(name, f, ...) end
---a; if the backward needs it, it is kept and never recomputed.
---
---    a [..] -> [..]
---    local y = keep(silu(x)) * w
---@param a Tensor @return Tensor
function keep(a) end
---a; the backward recomputes it instead of reading a kept copy, and may recompute its operands too. Sums, choices of
---experts and values from other ranks are kept regardless.
---
---    a [..] -> [..]
---    local y = recompute(silu(x)) * w
---@param a Tensor @return Tensor
function recompute(a) end
---Parameters as Hugging Face tensors: { ["path"] = { "tensor", "axes" } }; {i} is the same number on both sides,
---{expert} in the tensor's name one tensor an index, (a b) one dimension of two axes, (a|b) two parameters {p,q}
---one after another. config={ .. }: what the model has in common with config.json.
---
---    hf { ["w"] = { "model.norm.weight", "hidden" } }
---@param map table<string, table>
function hf(map) end
---How it is trained: `pleat help keys train`. The command line comes first.
---
---    train { steps=1000, batch=64, lr=3e-4, schedule="cosine", warmup=20 }
---    train { lr=3e-4, schedule=function(t) return t < 0.8 and 1 or 5 * (1 - t) end }    -- t: 0 after the warm-up, 1 at the end
---@param keys table
function train(keys) end
---What it is trained on: `pleat help keys data`. The command line comes first.
---
---    data { train={ { 0.7, "books" }, { 0.3, "code" } }, tokenizer="tokenizer.json" }
---@param keys table
function data(keys) end
---How it is cut over ranks: `pleat help keys fold`. The command line comes first.
---
---    fold { tp=2, ep=4 }
---@param keys table
function fold(keys) end
---In which numbers it computes: `pleat help keys precision`. The command line comes first.
---
---    precision { policy="fp8", recipe="blockwise" }
---@param keys table
function precision(keys) end
---How tokens reach experts: `pleat help keys route`. The command line comes first.
---
---    route { policy="dropless", factor=1.25 }
---@param keys table
function route(keys) end
---What it is planned for: `pleat help machines`, `pleat help keys cluster`. The command line comes first.
---
---    cluster { chip="h100x64", network=5e10 }
---@param keys table
function cluster(keys) end
---Normal values of that standard deviation: an initial value, the same bits in every fold.
---
---    local w1 = param("w1", "hidden dim", normal(0.02))
---@param std number @return Initial
function normal(std) end
---Values between -half and half: an initial value, the same bits in every fold.
---
---    local w1 = param("w1", "hidden dim", uniform(0.1))
---@param half number @return Initial
function uniform(half) end
---All alike; ones and zeros are such: an initial value, the same bits in every fold.
---
---    local w1 = param("w1", "hidden", constant(0.5))
---@param value number @return Initial
function constant(value) end
---@type Initial
ones = nil
---@type Initial
zeros = nil
---@type number
inf = nil

-- Elementwise: axes meet by name

---e^a; like all of its kind it keeps the axes of its operands, those of one name once.
---
---    a [..] -> [..]
---    gradient: dy * y
---    local y = exp(x)
---@param a Tensor @return Tensor
function exp(a) end
---a in f32, as the model's precision is bf16; of a dot or a sum it takes what was added up, before rounding.
---
---    a [..] -> [..]
---    gradient: dy in the dtype of a
---    local logits = f32(dot(x, w, "hidden"))
---@param a Tensor @return Tensor
function f32(a) end
---A real a as an integer, towards zero; a beyond 2^31 has no meaning.
---
---    a [..] -> [..], integers
---    gradient: none
---    local n = int(x * 10)
---@param a Tensor @return Tensor
function int(a) end
---The largest whole number at most a, a real. a // b is floor(a / b), of integers an integer.
---
---    a [..] -> [..]
---    gradient: none
---    local y = x - floor(x)
---@param a Tensor @return Tensor
function floor(a) end
---The bits of integers that a or b has, and not both; of truth values ne(a, b).
---
---    a [..], b [..] -> [axes of both], integers
---    gradient: none
---    local n = xor(ids, 5)
---@param a Operand @param b Operand @return Tensor
function xor(a, b) end
---a rounded to bf16.
---
---    a [..] -> [..]
---    gradient: dy in the dtype of a
---    local y = bf16(x)
---@param a Tensor @return Tensor
function bf16(a) end
---a rounded to 8 bits, 4 of exponent and 3 of mantissa, at most 448.
---
---    a [..] -> [..]
---    gradient: dy in the dtype of a
---    local y = f32(e4m3(x))
---@param a Tensor @return Tensor
function e4m3(a) end
---a rounded to 8 bits, 5 of exponent and 2 of mantissa, at most 57344.
---
---    a [..] -> [..]
---    gradient: dy in the dtype of a
---    local y = f32(e5m2(x))
---@param a Tensor @return Tensor
function e5m2(a) end
---a rounded up to a power of two, 8 bits of exponent: what MX formats keep as the scale of a block.
---
---    a [..] -> [..]
---    gradient: dy in the dtype of a
---    local y = f32(e8m0(x))
---@param a Tensor @return Tensor
function e8m0(a) end
---The larger one.
---
---    a [..], b [..] -> [axes of both]
---    gradient: to the larger one, of equal ones to a
---    local y = maximum(x, 0)
---@param a Operand @param b Operand @return Tensor
function maximum(a, b) end
---a * b + c, rounded once.
---
---    -> [axes of all]
---    gradient: dy * b, dy * a, dy
---    local y = fma(x, w, 1)
---@param a Operand @param b Operand @param c Operand @return Tensor
function fma(a, b, c) end
---a where c holds, else b; of two whole numbers, as in where(c, 1, 0), integers. Conditions come from lt le gt ge eq and land lor lnot.
---
---    -> [axes of all]
---    gradient: to a where c holds, to b elsewhere
---    local y = where(c, x, 0)
---@param c Tensor @param a Operand @param b Operand @return Tensor
function where(c, a, b) end
---a / (1 - p), or 0 with the odds p; a when it does not train. The same in every fold.
---
---    a [..] -> [..]
---    gradient: the same elements
---    local y = dropout(x, 0.1)
---@param a Tensor @param p number @return Tensor
function dropout(a, p) end
---a.
---
---    a [..] -> [..]
---    gradient: none goes back
---    local y = x - stop_gradient(max(x, "hidden"))
---@param a Tensor @return Tensor
function stop_gradient(a) end

-- Blocks with scales: layout is tensor, row, 1x128, 128x128, 1x32 or 1x16. axes are those that a block spans, the
-- last one contiguous; blocks names the new axes that count blocks, one for each of axes ("": a block has all of one).

---The largest magnitude of each block, infinite where one is NaN.
---
---    a [.. axes] -> [.. blocks]
---    gradient: none goes back
---    local y = amax(x, "1x128", "hidden", "hb")
---@param a Tensor @param layout string @param axes string @param blocks? string @return Tensor
function amax(a, layout, axes, blocks) end
---a times the scale of its block, rounded to numbers of few bits: e4m3, e5m2, or e2m1x2, which is a pair of 4 bits on
---the new axis pairs in the place of the last of axes.
---
---    a [.. axes], s [.. blocks] -> [.. axes]
---    gradient: as if it were not rounded
---    local y = f32(quantize(x, pow2_scale(amax(x, "row", "hidden"), 448), "row", "hidden", "", "e4m3"))
---@param a Tensor @param s Tensor @param layout string @param axes string @param blocks string @param to string @param pairs? string @return Tensor
function quantize(a, s, layout, axes, blocks, to, pairs) end
---The numbers of a times the scale of their block, in fp32: s is 1 over quantize's.
---
---    a [.. axes], s [.. blocks] -> [.. axes]
---    gradient: as if it were not rounded
---    local y = dequantize(x, amax(x, "row", "hidden"), "row", "hidden", "")
---@param a Tensor @param s Tensor @param layout string @param axes string @param blocks string @param pairs? string @return Tensor
function dequantize(a, s, layout, axes, blocks, pairs) end

-- Reductions: the named axes go

---The sum.
---
---    a [.. axes] -> [..]
---    gradient: dy, spread
---    local y = sum(x, "hidden")
---@param a Tensor @param axes string @return Tensor
function sum(a, axes) end
---The mean.
---
---    a [.. axes] -> [..]
---    gradient: dy / n, spread
---    local y = mean(x, "batch seq")
---@param a Tensor @param axes string @return Tensor
function mean(a, axes) end
---The largest.
---
---    a [.. axes] -> [..]
---    gradient: to the largest, shared by equal ones
---    local y = max(x, "hidden")
---@param a Tensor @param axes string @return Tensor
function max(a, axes) end
---The smallest.
---
---    a [.. axes] -> [..]
---    gradient: to the smallest, shared by equal ones
---    local y = min(x, "hidden")
---@param a Tensor @param axes string @return Tensor
function min(a, axes) end
---Does one hold?
---
---    a [.. axes] -> [..]
---    gradient: none
---    local y = any(c, "hidden")
---@param a Tensor @param axes string @return Tensor
function any(a, axes) end
---Do all hold?
---
---    a [.. axes] -> [..]
---    gradient: none
---    local y = all(c, "hidden")
---@param a Tensor @param axes string @return Tensor
function all(a, axes) end
---log(sum(exp(x))), without overflow.
---
---    x [.. axis] -> [..]
---    gradient: dy * softmax(x)
---    local z = logsumexp(p, "expert")
---@param x Tensor @param axis string @return Tensor
function logsumexp(x, axis) end

-- Structure

---The product of a and b, summed over the named axes; axes that both have stay, one of each. b may be W[e], the
---weights that an index picks: the tokens of each expert meet its own.
---
---    a [.. axes], b [.. axes] -> [axes of both but those]
---    gradient: dot(dy, b) and dot(dy, a)
---    local y = dot(x, W[e], "hidden")
---@param a Tensor @param b Tensor @param axes string @return Tensor
function dot(a, b, axes) end
---The k largest along axis, largest first, on a new axis ("top"): values, and an index into axis. Of equal ones the
---lower index comes first. A mask of the k largest compares indices, any(eq(e, iota(axis)), "top"): it has k elements in
---every fold. A mask that compares x with its k-th value also has those that tie with it, where rounding decides.
---
---    x [.. axis] -> values [.. new], index [.. new]
---    gradient: of the values, to where they were
---    local g, e = topk(p, 2, "expert")
---@param x Tensor @param k integer @param axis string @param new? string
---@return Tensor values, Index indices
function topk(x, k, axis, new) end
---Where the largest is: an index.
---
---    x [.. axis] -> [..]
---    gradient: none
---    local e = argmax(p, "expert")
---@param x Tensor @param axis string @return Index
function argmax(x, axis) end
---Other names for axes: keys are queries by another name.
---
---    a [..] -> [..]
---    gradient: dy by the old names
---    local k = rename(q, { seq="key" })
---@param a Tensor @param names table<string, string> @return Tensor
function rename(a, names) end
---One axis as several, major first.
---
---    a [.. axis] -> [.. into]
---    gradient: dy merged
---    local y = split(x, "hidden", "aa bb")
---@param a Tensor @param axis string @param into string @return Tensor
function split(a, axis, into) end
---Several axes as one, major first.
---
---    a [.. axes] -> [.. new]
---    gradient: dy split
---    local y = merge(x, "seq hidden", "all")
---@param a Tensor @param axes string @param new string @return Tensor
function merge(a, axes, new) end
---len places of the axis from start on, counted from 0.
---
---    a [.. axis] -> [.. axis], len long
---    gradient: dy there, 0 elsewhere
---    local y = slice(x, "seq", 1, 2)
---@param a Tensor @param axis string @param start integer @param len integer @return Tensor
function slice(a, axis, start, len) end
---concat(a, b, .., axis): one after another along the axis. concat(list, axis): the tensors of a list of any length.
---
---    a [.. axis], b [.. axis] -> [.. axis], as long as all
---    gradient: each its part of dy
---    local y = concat(x, x, "seq")
---@param ... Tensor|string @return Tensor
function concat(...) end
---y[i] = a[i - by]; zeros enter, or with wrap the other end.
---
---    a [.. axis] -> [.. axis]
---    gradient: dy shifted back
---    local y = shift(x, "seq", 1)
---@param a Tensor @param axis string @param by integer @param wrap? boolean @return Tensor
function shift(a, axis, by, wrap) end
---0, 1, 2 .. along the axis, which has the size that it has in x, or the size x, or that axes{} declares.
---
---    -> [axis]
---    gradient: none
---    local late = le(iota("seq"), 2)
---@param axis string @param x? Tensor|integer @return Tensor
function iota(axis, x) end
---1 where the index points, else 0.
---
---    e [..] -> [.. axis]
---    gradient: none
---    local load = mean(one_hot(e, "expert"), "batch seq top")
---@param e Index @param axis? string @return Tensor
function one_hot(e, axis) end
---An integer tensor as an index into axis: any router's choice.
---
---    t [..] -> [..]
---    gradient: none
---    local e = index(mod(ids, 4), "expert")
---@param t Tensor @param axis string @return Index
function index(t, axis) end
---What a has where e points.
---
---    a [.. axis], e [..] -> [axes of both but axis]
---    gradient: added up where e points
---    local chosen = gather(p, e)
---@param a Tensor @param e Index @param axis? string @return Tensor
function gather(a, e, axis) end
---Zeros like `like`, with v added where e points; -1 points nowhere.
---
---    v [..], e [..], like [.. axis] -> the axes of like
---    gradient: gathered from dy
---    local y = scatter_add(g, e, p)
---@param v Tensor @param e Index @param like Tensor @param axis? string @return Tensor
function scatter_add(v, e, like, axis) end
---The largest v where e points, -inf where no e points; integers become real. like gives the axes alone.
---
---    v [..], e [..], like [.. axis] -> the axes of like
---    gradient: to the largest v, shared by equal ones
---    local y = maximum(scatter_max(g, e, p), 0)
---@param v Tensor @param e Index @param like Tensor @param axis? string @return Tensor
function scatter_max(v, e, like, axis) end
---The rows of the table, whose first axis the ids count.
---
---    ids [..], table [vocab ..] -> [axes of both but vocab]
---    gradient: of the table, added up by row
---    local y = embed(ids, param("embed", "vocab hidden"))
---@param ids Tensor @param table Tensor @return Tensor
function embed(ids, table) end
---Sums of all up to each place.
---
---    a [.. axis] -> [.. axis]
---    gradient: sums from each place on
---    local y = cumsum(x, "seq")
---@param a Tensor @param axis string @return Tensor
function cumsum(a, axis) end
---The largest element up to each place.
---
---    x [.. axis] -> [.. axis]
---    gradient: to the largest element
---    local y = cummax(x, "seq")
---@param x Tensor @param axis string @return Tensor
function cummax(x, axis) end
---The elements along the axis, the largest first, equal ones in their order, and an index of where each was.
---
---    x [.. axis] -> [.. axis], index [.. axis]
---    gradient: to where each element was
---    local most, order = sort(x, "seq")
---@param x Tensor @param axis string @return Tensor, Index
function sort(x, axis) end
---A causal convolution of each channel: the sum over n taps i of w at tap i times x at n - 1 - i places before. Zeros
---stand before the first place. Computed in f32.
---
---    x [.. axis ..], w [.. tap] -> [axes of both but tap]
---    gradient: by its parts
---    local y = conv(x, param("taps", "hidden aa"), "seq", "aa")
---@param x Tensor @param w Tensor @param axis string @param tap string @return Tensor
function conv(x, w, axis, tap) end
---A random number for each element of x, in f32: "uniform" in [0, 1), "normal" or "gumbel". Each call, step and
---micro-batch has others; every fold and a resumed run have the same. Where nothing trains it is that of step 0.
---
---    x [..] -> [..]
---    gradient: none
---    local noisy = x + 0.1 * random("normal", x)
---@param kind "uniform"|"normal"|"gumbel" @param x Tensor @return Tensor
function random(kind, x) end
---Does x have the axis? true or false, for if; a name that is no axis is false.
---
---    local y = has(x, "dim") and sum(x, "dim") or x
---@param x Tensor @param axis string @return boolean
function has(x, axis) end
---The size of an axis, a number: size("hidden"), or of a tensor's.
---
---    local n = size("hidden") / size(x, "seq")
---@param a Tensor|string @param axis? string @return integer
function size(a, axis) end

-- Layers

---@class Yarn
---@field factor number
---@field original number
---@field beta_fast? number
---@field beta_slow? number
---@field attention_factor? number
---@field mscale? number
---@field mscale_all_dim? number
---@field truncate? boolean
---exp(x) / sum(exp(x)): rows sum to 1.
---
---    x [.. axis] -> [.. axis]
---    gradient: y * (dy - sum(dy * y))
---    local y = softmax(p, "expert")
---@param x Tensor @param axis string @return Tensor
function softmax(x, axis) end
---x / sqrt(mean(x^2) + eps) * weight: the parameter "weight" [axis], or one given after x; eps 1e-5. In f32. axis may
---name several axes.
---
---    x [.. axis] -> [.. axis]
---    gradient: by its parts
---    local y = scope("norm", rmsnorm, x, "hidden", 1e-6)
---@param x Tensor @param axis string|Tensor @param eps? number|string @return Tensor
function rmsnorm(x, axis, eps) end
---(x - mean) / sqrt(variance + eps) * weight + bias, parameters [axis]; eps 1e-5. In f32.
---
---    x [.. axis] -> [.. axis]
---    gradient: by its parts
---    local y = scope("norm", layernorm, x, "hidden")
---@param x Tensor @param axis string @param eps? number @return Tensor
function layernorm(x, axis, eps) end
---Rotary positions: the pair j of axis turns by pos * theta^(-2j/n); pairs are (j, j + n/2), or neighbours when
---interleaved. pos is an axis, or a tensor of positions. part: the share of axis that turns, from its begin, whose size
---is n. yarn: factor and original are needed, the others as Hugging Face's rope_parameters. scaling: the rope_scaling of
---a config.json as it is, of type linear, llama3 or yarn.
---
---    x [.. pos .. axis] -> the same
---    gradient: by its parts
---    local y = rope(q, "dim", "seq", 1e4, { yarn={ factor=4, original=16 } })
---@param x Tensor @param axis string @param pos string|Tensor @param theta number
---@param options? { interleaved: boolean?, part: number?, yarn: Yarn?, scaling: table? }
---@return Tensor
function rope(x, axis, pos, theta, options) end
---Scores of keys after their query become -inf.
---
---    s [.. query key] -> the same
---    gradient: dy where a score stays
---    local y = causal(sc, "seq", "key")
---@param s Tensor @param query string @param key string @return Tensor
function causal(s, query, key) end
---dot(softmax(s, key), v, key), with every square value behind s, which no memory ever holds. The result of a
---comparison of scores that something else reads too is computed once and stored; a warning says so.
---Bounds of positions skip tiles of keys: causal(..), windows lt(q - key, n), chunks ge(key, q - mod(q, n)). Two results more:
---the logsumexp of the scores in f32, which no memory holds either, and the largest score, for which they are stored.
---
---    s [.. seq key], v [.. key ..] -> [.. seq ..], l [.. seq], most [.. seq]
---    gradient: of queries, keys, values and what else scores are made of; none of the largest score
---    local y, l, most = attention(causal(sc, "seq", "key"), k, "key")
---@param s Tensor @param v Tensor @param key string @return Tensor, Tensor, Tensor
function attention(s, v, key) end
---dot(x, w, axes) with adapters of low rank beside a weight (LoRA): (alpha / rank) x A B is added. The parameters
---w.lora_A [.. rank] and w.lora_B [rank ..] stand below the weight's name, for an indexed weight one pair for each index.
---B begins at 0; alpha is rank unless given; dropout is of the adapters' x. train.freeze="* !*.lora_*" trains them alone.
---
---    x [.. in], w [in .. out ..] -> [.. out ..]
---    gradient: of x, the adapters, and the weight where it is not frozen
---    local y = lora(x, w, "hidden", { rank=8, alpha=16, dropout=0.05 })
---@param x Tensor @param w Tensor @param axes string @param options table @return Tensor
function lora(x, w, axes, options) end
---silu(gate) * up.
---
---    gate [..], up [..] -> [..]
---    gradient: by its parts
---    local y = swiglu(x, x)
---@param gate Tensor @param up Tensor @return Tensor
function swiglu(gate, up) end
----log softmax(logits)[label], in f32, of logits in the model's precision or f32(logits). Label -1: no loss.
---
---    logits [.. axis], labels [..] -> [..]
---    gradient: softmax(logits) - one_hot(label), 0 for -1
---    loss("lm", mean(cross_entropy(x, mod(ids, 8), "hidden"), "batch seq"))
---@param logits Tensor @param labels Tensor @param axis string @return Tensor
function cross_entropy(logits, labels, axis) end
---Softmax over all, then the k best, whose weights sum to less than 1; p: what balance losses take.
---
---    logits [.. axis] -> g [.. top], e [.. top], p [.. axis]
---    gradient: through g and p
---    local g, e, p = softmax_topk(p, 2, "expert")
---@param logits Tensor @param k integer @param axis string
---@return Tensor g, Index e, Tensor p
function softmax_topk(logits, k, axis) end
---The k best, then softmax over them: weights sum to 1.
---
---    logits [.. axis] -> g [.. top], e [.. top], p [.. axis]
---    gradient: through g and p
---    local g, e, p = topk_softmax(p, 2, "expert")
---@param logits Tensor @param k integer @param axis string
---@return Tensor g, Index e, Tensor p
function topk_softmax(logits, k, axis) end
---One, weighed by its probability (Switch).
---
---    logits [.. axis] -> g [.. top], e [.. top], p [.. axis]
---    gradient: through g and p
---    local g, e, p = softmax_top1(p, "expert")
---@param logits Tensor @param axis string
---@return Tensor g, Index e, Tensor p
function softmax_top1(logits, axis) end
---Sigmoids (DeepSeek-V3): only the choice sees bias, and is made within the `keep` groups whose `best` (2) scores sum
---highest; weights sum to 1.
---
---    logits [.. axis] -> g [.. top], e [.. top], p [.. axis]
---    gradient: through g and p
---    local g, e, p = sigmoid_topk(p, 2, "expert", { bias=s, groups="nodes", keep=1 })
---@param logits Tensor @param k integer @param axis string
---@param options? { bias: Tensor?, groups: string?, keep: integer?, best: integer? }
---@return Tensor g, Index e, Tensor p
function sigmoid_topk(logits, k, axis, options) end
---Every expert takes the n tokens that want it most; f makes outputs of rows [axis slot ..]. Others get 0.
---
---    x [tokens ..], logits [tokens axis] -> what f makes, [tokens ..]
---    gradient: through f and the weights
---    local y = expert_choice(x, p, 2, "expert", "batch seq", function(rows) return rows end)
---@param x Tensor @param logits Tensor @param n integer @param axis string @param tokens string @param f function
---@return Tensor
function expert_choice(x, logits, n, axis, tokens, f) end
---An expert by the token's own number: an index.
---
---    ids [..] -> [..]
---    gradient: none
---    local e = hash_index(ids, "expert")
---@param ids Tensor @param axis string @return Index
function hash_index(ids, axis) end
---E * sum(mean(p) * share of the k best): over "batch seq" of a micro-batch, over "seq" of each sequence, then take
---the mean over "batch" (Fedus et al. 2021).
---
---    p [tokens axis] -> []
---    gradient: through mean(p)
---    loss("balance", balance_loss(p, 2, "expert", "batch seq"), 0.01)
---@param p Tensor @param k integer @param axis string @param tokens string @return Tensor
function balance_loss(p, k, axis, tokens) end
---The same with the shares of the whole step before, a state "load".
---
---    p [tokens axis] -> []
---    gradient: through mean(p)
---    loss("balance", global_balance_loss(p, 2, "expert", "batch seq"), 0.01)
---@param p Tensor @param k integer @param axis string @param tokens string @return Tensor
function global_balance_loss(p, k, axis, tokens) end
---mean(logsumexp(logits)^2): keeps logits small.
---
---    logits [tokens axis] -> []
---    gradient: by its parts
---    loss("z", z_loss(p, "expert", "batch seq"), 1e-3)
---@param logits Tensor @param axis string @param tokens string @return Tensor
function z_loss(logits, axis, tokens) end
---After a step the bias of busy experts shrinks by rate, of idle ones grows; pairs: all axes of e.
---
---    bias: a state [axis], e [pairs]
---    gradient: none
---    balance_bias(s, e, "expert", "batch seq top", 1e-3)
---@param bias Tensor @param e Index @param axis string @param pairs string @param rate number
function balance_bias(bias, e, axis, pairs, rate) end
---After a step the state bias, added to scores s before the choice of k, moves by the share rate towards minus the
---quantiles at which equally many tokens choose each expert. Quantiles are along the axis tokens, then averaged over
---rest and the micro-batches.
---
---    bias [axis], s [.. axis]
---    gradient: none
---    quantile_bias(s, p, 2, "expert", "seq", "batch", 0.1)
---@param bias Tensor @param s Tensor @param k integer @param axis string @param tokens string @param rest string
---@param rate number
function quantile_bias(bias, s, k, axis, tokens, rest, rate) end
----inf but for the n groups whose `best` largest scores sum highest; groups is a declared axis.
---
---    s [.. axis] -> [.. axis]
---    gradient: dy where a score stays
---    local y = limit_groups(p, "expert", "nodes", 1, 2)
---@param s Tensor @param axis string @param groups string @param n integer @param best integer @return Tensor
function limit_groups(s, axis, groups, n, best) end
