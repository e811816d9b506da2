-- luacheck's settings for model files: the names of the language, as editor.lua
-- has them. Lua's own io, os, debug and such are not in models, so not here.
local language = {
  "abs", "add", "all", "amax", "amax_scale", "any", "argmax", "attention",
  "axes", "balance_bias", "balance_loss", "bf16", "causal", "concat",
  "constant", "cos", "cross_entropy", "cumsum", "data", "dequantize", "div",
  "dot", "dropout", "e4m3", "e5m2", "e8m0", "embed", "eq", "exp",
  "expert_choice", "f32", "fma", "fold", "gather", "ge", "gelu",
  "global_balance_loss", "gt", "hash_index", "hf", "index", "inf", "input",
  "iota", "land", "layernorm", "le", "limit_groups", "lnot", "log",
  "logsumexp", "lor", "loss", "lt", "max", "maximum", "mean", "merge",
  "metric", "min", "minimum", "mod", "mul", "mx_inverse", "mx_scale", "ne",
  "neg", "normal", "nv_inverse", "nv_scale", "one_hot", "ones", "output",
  "param", "pow", "pow2_scale", "precision", "quantize", "relu", "rename",
  "rmsnorm", "rope", "route", "rsqrt", "scatter_add", "scope", "shift",
  "sigmoid", "sigmoid_topk", "sign", "silu", "sin", "size", "slice", "softmax",
  "softmax_top1", "softmax_topk", "softplus", "split", "sqrt", "state",
  "stop_gradient", "sub", "sum", "swiglu", "tanh", "topk", "topk_softmax",
  "train", "uniform", "update", "where", "z_loss", "zeros"
}

local lua = {
  "assert", "error", "ipairs", "next", "pairs", "print", "rawequal", "rawget",
  "rawlen", "rawset", "require", "select", "setmetatable", "getmetatable",
  "tonumber", "tostring", "type", "math", "string", "table", "utf8", "_G", "_VERSION"
}

stds.pleat = { read_globals = {} }
for _, names in ipairs { language, lua } do
  for _, name in ipairs(names) do
    table.insert(stds.pleat.read_globals, name)
  end
end
std = "pleat"
max_line_length = false
exclude_files = { "frontend" }              -- prelude and editor.lua make the names
