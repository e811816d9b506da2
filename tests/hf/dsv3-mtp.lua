-- DeepSeek-V3 with a layer that predicts the token after the next (MTP), as make.py composes
-- it of transformers' layers
axes { batch=2, seq=32, hidden=64, heads=4, nope=16, rot=8, dim=12, qr=24, kvr=16,
       dense=48, ffn=20, expert=8, nodes=4, prior=64, vocab=256 }

local layers, dense_layers, eps = 2, 1, 1e-6
local mtp, mtp_weight = 2, 0.3                           -- tokens predicted beyond the next; 0: none
local yarn = { factor=40, original=16, attention_factor=1 }
local sharpen = 0.1 * math.log(yarn.factor) + 1

local function norm(name, x, axis)
  return scope(name, rmsnorm, x, axis, eps)
end

local function turn(x)
  return rope(x, "rot", "seq", 1e4, { interleaved=true, yarn=yarn })
end

local function latent_attention(x)
  local cq  = norm("q_norm", dot(x, param("wq_a", "hidden qr"), "hidden"), "qr")
  local ckv = norm("kv_norm", dot(x, param("wkv_a", "hidden kvr"), "hidden"), "kvr")
  local qn  = dot(cq, param("wq_nope", "qr heads nope"), "qr")
  local qr  = turn(dot(cq, param("wq_rope", "qr heads rot"), "qr"))
  local kr  = turn(dot(x, param("wk_rope", "hidden rot"), "hidden"))
  local kn  = dot(ckv, param("wk_nope", "kvr heads nope"), "kvr")
  local v   = dot(ckv, param("wv", "kvr heads dim"), "kvr")
  kr, kn, v = rename(kr, {seq="key"}), rename(kn, {seq="key"}), rename(v, {seq="key"})
  local s   = (dot(qn, kn, "nope") + dot(qr, kr, "rot")) * (sharpen^2 / math.sqrt(size("nope") + size("rot")))
  local y   = attention(causal(s, "seq", "key"), v, "key")
  return dot(y, param("wo", "heads dim hidden"), "heads dim")
end

local function ffn(x, width)
  local gate = dot(x, param("w1", "hidden " .. width), "hidden")
  local up   = dot(x, param("w3", "hidden " .. width), "hidden")
  return dot(swiglu(gate, up), param("w2", width .. " hidden"), width)
end

local function router(x)                                 -- sigmoid, bias-corrected, node-limited
  local bias = state("bias", "expert")                   -- no gradient; changed by update()
  local g, e = sigmoid_topk(dot(x, param("gate", "hidden expert"), "hidden"), 2, "expert",
                               { bias=bias, groups="nodes", keep=2, best=2 })
  return 2.5 * g, e
end

local function moe(x)
  local g, e   = scope("router", router, x)
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local w2     = param("w2", "expert ffn hidden")
  local y      = swiglu(dot(x, w1[e], "hidden"), dot(x, w3[e], "hidden"))
  return scope("shared", ffn, x, "ffn") + sum(g * dot(y, w2[e], "ffn"), "top")
end

local function layer(x, i)
  local h = x + scope("attn", latent_attention, norm("attn_norm", x, "hidden"))
  local z = norm("ffn_norm", h, "hidden")
  return h + (i < dense_layers and scope("ffn", ffn, z, "dense") or scope("moe", moe, z))
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
labels = where(eq(labels, 7), -1, labels)                -- as make.py leaves them out
local table = param("embed", "vocab hidden")

-- From what was made of a position and from the token n after it, one layer more
local function further(x, n)
  local e = norm("embed_norm", embed(shift(tokens, "seq", -n), table), "hidden")
  local h = norm("hidden_norm", x, "hidden")
  e, h = rename(e, {hidden="prior"}), rename(h, {hidden="prior"})
  local z = dot(e, param("we", "prior hidden"), "prior") + dot(h, param("wh", "prior hidden"), "prior")
  return norm("norm", scope("layer", layer, z, layers), "hidden")
end

local x = embed(tokens, table)
for i = 0, layers - 1 do
  x = scope("layers." .. i, layer, x, i)
end
x = norm("norm", x, "hidden")
local ahead = { [0]=x }
for n = 1, mtp do
  ahead[n] = scope({ "mtp", n - 1, kind="mtp" }, further, ahead[n - 1], n)
end

local head = param("head", "hidden vocab")
local logits = dot(x, head, "hidden")
loss("lm", sum(cross_entropy(f32(logits), labels, "vocab"), "batch seq"), 1,
     sum(f32(ge(labels, 0)), "batch seq"))
output("logits", logits)
for n = 1, mtp do                                        -- label -1, no loss, where the sequence ends
  local later = shift(labels + 1, "seq", -n) - 1
  local l = cross_entropy(f32(dot(ahead[n], head, "hidden")), later, "vocab")
  loss("mtp" .. n, sum(l, "batch seq"), mtp_weight / mtp, sum(f32(ge(later, 0)), "batch seq"))
end

local function names(ours, theirs)                       -- of a layer with experts
  local attn, mlp = theirs .. ".self_attn.", theirs .. ".mlp."
  hf {
    [ours .. ".attn_norm.weight"]       = { theirs .. ".input_layernorm.weight", "hidden" },
    [ours .. ".attn.wq_a"]              = { attn .. "q_a_proj.weight", "qr hidden" },
    [ours .. ".attn.q_norm.weight"]     = { attn .. "q_a_layernorm.weight", "qr" },
    [ours .. ".attn.{wq_nope,wq_rope}"] = { attn .. "q_b_proj.weight", "(heads (nope|rot)) qr" },
    [ours .. ".attn.{wkv_a,wk_rope}"]   = { attn .. "kv_a_proj_with_mqa.weight", "(kvr|rot) hidden" },
    [ours .. ".attn.kv_norm.weight"]    = { attn .. "kv_a_layernorm.weight", "kvr" },
    [ours .. ".attn.{wk_nope,wv}"]      = { attn .. "kv_b_proj.weight", "(heads (nope|dim)) kvr" },
    [ours .. ".attn.wo"]                = { attn .. "o_proj.weight", "hidden (heads dim)" },
    [ours .. ".ffn_norm.weight"]        = { theirs .. ".post_attention_layernorm.weight", "hidden" },
    [ours .. ".moe.router.gate"]        = { mlp .. "gate.weight", "expert hidden" },
    [ours .. ".moe.router.bias"]        = { mlp .. "gate.e_score_correction_bias", "expert" },
    [ours .. ".moe.{w1,w3}"]            = { mlp .. "experts.gate_up_proj", "expert (ffn|ffn) hidden" },
    [ours .. ".moe.w2"]                 = { mlp .. "experts.down_proj", "expert hidden ffn" },
    [ours .. ".moe.shared.w1"]          = { mlp .. "shared_experts.gate_proj.weight", "ffn hidden" },
    [ours .. ".moe.shared.w2"]          = { mlp .. "shared_experts.down_proj.weight", "hidden ffn" },
    [ours .. ".moe.shared.w3"]          = { mlp .. "shared_experts.up_proj.weight", "ffn hidden" },
  }
end

names("layers.{i}", "model.layers.{i}")
hf {
  ["embed"]             = { "model.embed_tokens.weight", "vocab hidden" },
  ["norm.weight"]       = { "model.norm.weight", "hidden" },
  ["head"]              = { "lm_head.weight", "vocab hidden" },
  ["layers.{i}.ffn.w1"] = { "model.layers.{i}.mlp.gate_proj.weight", "dense hidden" },
  ["layers.{i}.ffn.w2"] = { "model.layers.{i}.mlp.down_proj.weight", "hidden dense" },
  ["layers.{i}.ffn.w3"] = { "model.layers.{i}.mlp.up_proj.weight", "dense hidden" },
}
for n = 0, mtp - 1 do                                    -- their layers go on: 2
  local ours, theirs = "mtp." .. n, "model.layers." .. layers + n
  names(ours .. ".layer", theirs)
  hf {
    [ours .. ".embed_norm.weight"]  = { theirs .. ".enorm.weight", "hidden" },
    [ours .. ".hidden_norm.weight"] = { theirs .. ".hnorm.weight", "hidden" },
    [ours .. ".{we,wh}"]            = { theirs .. ".eh_proj.weight", "hidden (prior|prior)" },
    [ours .. ".norm.weight"]        = { theirs .. ".shared_head.norm.weight", "hidden" },
  }
end
train { steps=10, lr=1e-3, weight_decay=0.1, no_decay="", clip=0 }
data  { train="tokens.npy" }
