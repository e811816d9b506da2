-- DeepSeek-V3: 671 billion parameters, 37 billion active, and 11.6 billion that predict one
-- more token while it trains (Liu et al. 2024)
axes { batch=1, seq=4096, hidden=7168, heads=128, nope=128, rot=64, dim=128, qr=1536, kvr=512,
       dense=18432, ffn=2048, shared=2048, expert=256, nodes=8, prior=7168, vocab=129280 }

local layers, dense_layers, eps = 61, 3, 1e-6
local chosen, scale, theta = 8, 2.5, 1e4                 -- experts of a token, their weight; of positions
local kept, low_rank = 4, true                           -- groups that a token may choose from; queries from "qr"
local tied, pad = false, -1                              -- the head is the embedding; a token whose row has no gradient
local mtp, mtp_weight = 1, 0.1                           -- tokens predicted beyond the next; 0: none
local yarn = { factor=40, original=4096, mscale=1, mscale_all_dim=1 }    -- nil: positions as they are
local sharpen = yarn and 0.1 * yarn.mscale_all_dim * math.log(yarn.factor) + 1 or 1

local function norm(name, x, axis)
  return scope(name, rmsnorm, x, axis, eps)
end

local function turn(x)
  return rope(x, "rot", "seq", theta, { interleaved=true, yarn=yarn })
end

local query = low_rank and "qr" or "hidden"
local function up(cq, ckv, kr)                           -- queries, keys and values of all heads
  local qn = dot(cq, param("wq_nope", query .. " heads nope"), query)
  local qr = turn(dot(cq, param("wq_rope", query .. " heads rot"), query))
  local kn = dot(ckv, param("wk_nope", "kvr heads nope"), "kvr")
  return qn, qr, kn, turn(kr), dot(ckv, param("wv", "kvr heads dim"), "kvr")
end

local function latent_attention(x)
  local cq  = low_rank and norm("q_norm", dot(x, param("wq_a", "hidden qr"), "hidden"), "qr") or x
  local ckv = norm("kv_norm", dot(x, param("wkv_a", "hidden kvr"), "hidden"), "kvr")
  local kr  = dot(x, param("wk_rope", "hidden rot"), "hidden")
  local qn, qr, kn, kr, v = module("mla_up_proj", up, cq, ckv, kr)
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
  local g, e, p = sigmoid_topk(dot(x, param("gate", "hidden expert"), "hidden"), chosen, "expert",
                               { bias=bias, groups="nodes", keep=kept, best=2 })
  balance_bias(bias, e, "expert", "batch seq top", 1e-3)
  loss("balance", mean(balance_loss(p, chosen, "expert", "seq"), "batch"), 1e-4)
  return scale * g, e
end

local function moe(x)
  local g, e   = scope("router", router, x)
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local w2     = param("w2", "expert ffn hidden")
  local y      = swiglu(dot(x, w1[e], "hidden"), dot(x, w3[e], "hidden"))
  return scope("shared", module, "shared_experts", ffn, x, "shared") + sum(g * dot(y, w2[e], "ffn"), "top")
end

local function layer(x, i)
  local h = x + scope("attn", latent_attention, norm("attn_norm", x, "hidden"))
  local z = norm("ffn_norm", h, "hidden")
  return h + (i < dense_layers and scope("ffn", module, "mlp", ffn, z, "dense") or scope("moe", module, "moe", moe, z))
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local table = param("embed", "vocab hidden", normal(0.006))

local function row_of(ids)
  local x = embed(ids, table)
  return pad < 0 and x or where(eq(ids, pad), stop_gradient(x), x)
end

-- From what was made of a position and from the token n after it, one layer more
local function further(x, n)
  local e = norm("embed_norm", row_of(shift(tokens, "seq", -n)), "hidden")
  local h = norm("hidden_norm", x, "hidden")
  e, h = rename(e, {hidden="prior"}), rename(h, {hidden="prior"})
  local z = dot(e, param("we", "prior hidden"), "prior") + dot(h, param("wh", "prior hidden"), "prior")
  return norm("norm", scope("layer", layer, z, layers), "hidden")
end

local x = row_of(tokens)
for i = 0, layers - 1 do
  x = scope("layers." .. i, layer, x, i)
end
x = norm("norm", x, "hidden")
local ahead = { [0]=x }
for n = 1, mtp do
  ahead[n] = scope({ "mtp", n - 1, kind="mtp" }, further, ahead[n - 1], n)
end

local head = tied and table or param("head", "hidden vocab")
local logits = dot(x, head, "hidden")
loss("lm", mean(cross_entropy(logits, labels, "vocab"), "batch seq"))
output("logits", logits)
for n = 1, mtp do                                        -- label -1, no loss, where the sequence ends
  local later = shift(labels + 1, "seq", -n) - 1
  local l = cross_entropy(dot(ahead[n], head, "hidden"), later, "vocab")
  loss("mtp" .. n, sum(l, "batch seq"), mtp_weight / mtp, sum(f32(ge(later, 0)), "batch seq"))
end

train { batch=8192, lr=2.2e-4, min_lr=2.2e-5, schedule="cosine", warmup=2000, clip=1 }
precision { policy="bf16" }

local function names(ours, theirs)                       -- of a layer with experts
  local attn, mlp = theirs .. ".self_attn.", theirs .. ".mlp."
  hf {
    [ours .. ".attn_norm.weight"]       = { theirs .. ".input_layernorm.weight", "hidden" },
    [ours .. ".attn.wq_a"]              = low_rank and { attn .. "q_a_proj.weight", "qr hidden" } or nil,
    [ours .. ".attn.q_norm.weight"]     = low_rank and { attn .. "q_a_layernorm.weight", "qr" } or nil,
    [ours .. ".attn.{wq_nope,wq_rope}"] = { attn .. (low_rank and "q_b" or "q") .. "_proj.weight", "(heads (nope|rot)) " .. query },
    [ours .. ".attn.{wkv_a,wk_rope}"]   = { attn .. "kv_a_proj_with_mqa.weight", "(kvr|rot) hidden" },
    [ours .. ".attn.kv_norm.weight"]    = { attn .. "kv_a_layernorm.weight", "kvr" },
    [ours .. ".attn.{wk_nope,wv}"]      = { attn .. "kv_b_proj.weight", "(heads (nope|dim)) kvr" },
    [ours .. ".attn.wo"]                = { attn .. "o_proj.weight", "hidden (heads dim)" },
    [ours .. ".ffn_norm.weight"]        = { theirs .. ".post_attention_layernorm.weight", "hidden" },
    [ours .. ".moe.router.gate"]        = { mlp .. "gate.weight", "expert hidden" },
    [ours .. ".moe.router.bias"]        = { mlp .. "gate.e_score_correction_bias", "expert" },
    [ours .. ".moe.w1"]                 = { mlp .. "experts.{expert}.gate_proj.weight", "ffn hidden" },
    [ours .. ".moe.w2"]                 = { mlp .. "experts.{expert}.down_proj.weight", "hidden ffn" },
    [ours .. ".moe.w3"]                 = { mlp .. "experts.{expert}.up_proj.weight", "ffn hidden" },
    [ours .. ".moe.shared.w1"]          = { mlp .. "shared_experts.gate_proj.weight", "shared hidden" },
    [ours .. ".moe.shared.w2"]          = { mlp .. "shared_experts.down_proj.weight", "hidden shared" },
    [ours .. ".moe.shared.w3"]          = { mlp .. "shared_experts.up_proj.weight", "shared hidden" },
  }
end

names("layers.{i}", "model.layers.{i}")
hf {
  config = {
    model_type="deepseek_v3", architectures={"DeepseekV3ForCausalLM"},
    hidden_size=size("hidden"), num_hidden_layers=layers, vocab_size=size("vocab"), rms_norm_eps=eps,
    hidden_act="silu", tie_word_embeddings=tied, pad_token_id=pad >= 0 and pad or nil,
    max_position_embeddings=163840, rope_theta=theta,
    num_attention_heads=size("heads"), num_key_value_heads=size("heads"), kv_lora_rank=size("kvr"),
    qk_nope_head_dim=size("nope"), qk_rope_head_dim=size("rot"), v_head_dim=size("dim"),
    rope_scaling=yarn and {
      type="yarn", factor=yarn.factor, original_max_position_embeddings=yarn.original,
      beta_fast=yarn.beta_fast or 32, beta_slow=yarn.beta_slow or 1, mscale=yarn.mscale, mscale_all_dim=yarn.mscale_all_dim,
    },
    intermediate_size=size("dense"), moe_intermediate_size=size("ffn"), first_k_dense_replace=dense_layers,
    q_lora_rank=low_rank and size("qr") or "null", n_routed_experts=size("expert"),
    n_shared_experts=size("shared") // size("ffn"),
    num_experts_per_tok=chosen, norm_topk_prob=true, routed_scaling_factor=scale, scoring_func="sigmoid",
    topk_method="noaux_tc", n_group=size("nodes"), topk_group=kept, num_nextn_predict_layers=mtp,
    attention_bias=false,
  },
  ["embed"]             = { "model.embed_tokens.weight", "vocab hidden" },
  ["norm.weight"]       = { "model.norm.weight", "hidden" },
  ["head"]              = not tied and { "lm_head.weight", "vocab hidden" } or nil,
  ["layers.{i}.ffn.w1"] = { "model.layers.{i}.mlp.gate_proj.weight", "dense hidden" },
  ["layers.{i}.ffn.w2"] = { "model.layers.{i}.mlp.down_proj.weight", "hidden dense" },
  ["layers.{i}.ffn.w3"] = { "model.layers.{i}.mlp.up_proj.weight", "dense hidden" },
}
for n = 0, mtp - 1 do                                    -- their layers go on: 61
  local ours, theirs = "mtp." .. n, "model.layers." .. layers + n
  names(ours .. ".layer", theirs)
  hf {
    [ours .. ".embed_norm.weight"]  = { theirs .. ".enorm.weight", "hidden" },
    [ours .. ".hidden_norm.weight"] = { theirs .. ".hnorm.weight", "hidden" },
    [ours .. ".{we,wh}"]            = { theirs .. ".eh_proj.weight", "hidden (prior|prior)" },
    [ours .. ".norm.weight"]        = { theirs .. ".shared_head.norm.weight", "hidden" },
  }
end
