---@meta
-- What editors show of the language (LuaLS). `pleat new` puts it beside a model.

---@class Tensor
---@operator add(Tensor|number): Tensor
---@operator sub(Tensor|number): Tensor
---@operator mul(Tensor|number): Tensor
---@operator div(Tensor|number): Tensor
---@operator mod(Tensor|number): Tensor
---@operator pow(number): Tensor
---@operator unm: Tensor
---@field [Index] Tensor
---@class Index: Tensor

---@alias Operand Tensor|number
---@class Initial

-- Declarations

---Names and sizes of axes: axes { seq=4096, hidden=2048 }
---@param sizes table<string, integer>
function axes(sizes) end
---A tensor that changes with every micro-batch. "tokens" and "labels" hold integers.
---@param name string @param axes string @param dtype? string @return Tensor
function input(name, axes, dtype) end
---A weight under the path of the scopes around it; normal(0.02) if not told.
---@param path string @param axes string @param init? Initial|number @return Tensor
function param(path, axes, init) end
---A value that only update() changes; zeros if not told.
---@param path string @param axes string @param init? Initial|number @return Tensor
function state(path, axes, init) end
---The state's value from the next step on.
---@param s Tensor @param value Tensor
function update(s, value) end
---The step's loss is the sum of weight * t / den over all losses.
---@param name string @param t Tensor @param weight? number @param den? Tensor
function loss(name, t, weight, den) end
---@param name string @param t Tensor
function metric(name, t) end
---Read by generate and eval.
---@param name string @param t Tensor
function output(name, t) end
---f(...), with name in front of the paths made inside. scope(name, i, f, ...): one
---of a row of layers, a unit that fold.pp cuts; { name, i, kind="mtp" }: one that
---predicts a token further.
---@param name string|table @param f function|integer @param ... any
function scope(name, f, ...) end
---Parameters as Hugging Face tensors: { ["path"] = { "tensor", "axes" } };
---config={ .. }: the config.json of exported folders
---@param map table<string, table>
function hf(map) end
---@param keys table
function train(keys) end
---@param keys table
function data(keys) end
---@param keys table
function fold(keys) end
---@param keys table
function precision(keys) end
---@param keys table
function cluster(keys) end
---@param keys table
function route(keys) end

---@param std number @return Initial
function normal(std) end
---@param half number @return Initial
function uniform(half) end
---@param value number @return Initial
function constant(value) end
---@type Initial
ones = nil
---@type Initial
zeros = nil
---@type number
inf = nil

-- Elementwise: axes meet by name

---@param a Tensor @return Tensor
function exp(a) end
f32, bf16 = exp, exp
---@param a Operand @param b Operand @return Tensor
function maximum(a, b) end
---@param a Operand @param b Operand @param c Operand @return Tensor
function fma(a, b, c) end
---@param c Tensor @param a Operand @param b Operand @return Tensor
function where(c, a, b) end
---@param a Tensor @param p number @return Tensor
function dropout(a, p) end

-- Reductions: the named axes go

---@param a Tensor @param axes string @return Tensor
function sum(a, axes) end
mean, max, min, any, all, logsumexp = sum, sum, sum, sum, sum, sum

-- Structure

---The product of a and b, summed over the named axes. b may be W[e].
---@param a Tensor @param b Tensor @param axes string @return Tensor
function dot(a, b, axes) end
---The k largest along axis, on a new axis ("top"), and where they were.
---@param x Tensor @param k integer @param axis string @param new? string
---@return Tensor values, Index indices
function topk(x, k, axis, new) end
---@param x Tensor @param axis string @return Index
function argmax(x, axis) end
---@param a Tensor @param names table<string, string> @return Tensor
function rename(a, names) end
---@param a Tensor @param axis string @param into string @return Tensor
function split(a, axis, into) end
---@param a Tensor @param axes string @param new string @return Tensor
function merge(a, axes, new) end
---@param a Tensor @param axis string @param start integer @param len integer @return Tensor
function slice(a, axis, start, len) end
---concat(a, b, ..., axis)
---@param ... Tensor|string @return Tensor
function concat(...) end
---y[x] = a[x - by]; zeros enter, or the other end with wrap.
---@param a Tensor @param axis string @param by integer @param wrap? boolean @return Tensor
function shift(a, axis, by, wrap) end
---@param axis string @return Tensor
function iota(axis) end
---@param e Index @param axis? string @return Tensor
function one_hot(e, axis) end
---An integer tensor as an index into axis.
---@param t Tensor @param axis string @return Index
function index(t, axis) end
---@param a Tensor @param e Index @param axis? string @return Tensor
function gather(a, e, axis) end
---Zeros like `like`, with v added where e says.
---@param v Tensor @param e Index @param like Tensor @param axis? string @return Tensor
function scatter_add(v, e, like, axis) end
---@param ids Tensor @param table Tensor @return Tensor
function embed(ids, table) end
---@param a Tensor @param axis string @return Tensor
function cumsum(a, axis) end
---@param a Tensor @param axis string @return integer
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

---@param x Tensor @param axis string @return Tensor
function softmax(x, axis) end
---@param x Tensor @param axis string @param eps? number @return Tensor
function rmsnorm(x, axis, eps) end
---@param x Tensor @param axis string @param eps? number @return Tensor
function layernorm(x, axis, eps) end
---yarn: factor and original are needed, the others as Hugging Face's rope_parameters.
---@param x Tensor @param axis string @param pos string @param theta number
---@param options? { interleaved: boolean?, yarn: Yarn? }
---@return Tensor
function rope(x, axis, pos, theta, options) end
---@param s Tensor @param query string @param key string @return Tensor
function causal(s, query, key) end
---dot(softmax(s, key), v, key), with every square value behind s
---@param s Tensor @param v Tensor @param key string @return Tensor
function attention(s, v, key) end
---@param gate Tensor @param up Tensor @return Tensor
function swiglu(gate, up) end
---In f32, of logits in the model's precision or f32(logits). Label -1: no loss.
---@param logits Tensor @param labels Tensor @param axis string @return Tensor
function cross_entropy(logits, labels, axis) end
---Softmax over all, then the k best; p: what balance losses take.
---@param logits Tensor @param k integer @param axis string
---@return Tensor g, Index e, Tensor p
function softmax_topk(logits, k, axis) end
---The k best, then softmax over them.
---@param logits Tensor @param k integer @param axis string
---@return Tensor g, Index e, Tensor p
function topk_softmax(logits, k, axis) end
---One, weighed by its probability.
---@param logits Tensor @param axis string
---@return Tensor g, Index e, Tensor p
function softmax_top1(logits, axis) end
---Sigmoids; only the choice sees bias, and is made within the best groups.
---@param logits Tensor @param k integer @param axis string
---@param options? { bias: Tensor?, groups: string?, keep: integer?, best: integer? }
---@return Tensor g, Index e, Tensor p
function sigmoid_topk(logits, k, axis, options) end
---Every expert takes its n tokens; f makes outputs of rows [axis slot ..].
---@param x Tensor @param logits Tensor @param n integer @param axis string @param tokens string @param f function
---@return Tensor
function expert_choice(x, logits, n, axis, tokens, f) end
---An expert by the token's own number.
---@param ids Tensor @param axis string @return Index
function hash_index(ids, axis) end
---Fedus et al. 2021; tokens: "batch seq", or "seq" and then the mean over "batch".
---@param p Tensor @param k integer @param axis string @param tokens string @return Tensor
function balance_loss(p, k, axis, tokens) end
---With the shares of the step before, a state "load".
---@param p Tensor @param k integer @param axis string @param tokens string @return Tensor
function global_balance_loss(p, k, axis, tokens) end
---mean(logsumexp(logits)^2)
---@param logits Tensor @param axis string @param tokens string @return Tensor
function z_loss(logits, axis, tokens) end
---After a step the bias of busy experts shrinks by rate, of idle ones grows; pairs: all axes of e.
---@param bias Tensor @param e Index @param axis string @param pairs string @param rate number
function balance_bias(bias, e, axis, pairs, rate) end
----inf but for the n groups whose `best` largest scores sum highest.
---@param s Tensor @param axis string @param groups string @param n integer @param best integer @return Tensor
function limit_groups(s, axis, groups, n, best) end
