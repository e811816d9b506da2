-- Qwen2-57B-A14B: 57.4 billion parameters, 14.2 billion active (Yang et al. 2024)
axes { batch=1, seq=4096, hidden=3584, kv=4, group=7, dim=128,
       ffn=2560, shared=20480, expert=64, vocab=151936 }

local layers, eps = 28, 1e-6
local chosen, theta, scaling = 8, 1e6, nil              -- experts of a token; of positions
local tied, pad = false, -1                              -- the head is the embedding; a token whose row has no gradient
local normed = false                                    -- their weights sum to 1

local function project(x, name, axes)                    -- with a bias
  return dot(x, param("w" .. name, "hidden " .. axes), "hidden") + param("b" .. name, axes, zeros)
end

local function attend(x)                                 -- grouped-query attention
  local q = rope(project(x, "q", "kv group dim"), "dim", "seq", theta, { scaling=scaling })
  local k = rope(project(x, "k", "kv dim"), "dim", "seq", theta, { scaling=scaling })
  local v = project(x, "v", "kv dim")
  k, v = rename(k, {seq="key"}), rename(v, {seq="key"})
  local s = causal(dot(q, k, "dim") / math.sqrt(size("dim")), "seq", "key")
  return dot(attention(s, v, "key"), param("wo", "kv group dim hidden"), "kv group dim")
end

local function shared(x)                                 -- an expert of all tokens, and how much of it
  local gate, up = param("w1", "hidden shared"), param("w3", "hidden shared")
  local y = swiglu(dot(x, gate, "hidden"), dot(x, up, "hidden"))
  return sigmoid(dot(x, param("gate", "hidden"), "hidden")) * dot(y, param("w2", "shared hidden"), "shared")
end

local function moe(x)
  local gate   = param("gate", "hidden expert")
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local w2     = param("w2", "expert ffn hidden")
  local p      = softmax(f32(dot(x, gate, "hidden")), "expert")
  local g, e   = topk(p, chosen, "expert")
  if normed then g = g / sum(g, "top") end
  loss("balance", balance_loss(p, chosen, "expert", "batch seq"), 1e-3)
  local y = swiglu(dot(x, w1[e], "hidden"), dot(x, w3[e], "hidden"))
  return scope("shared", module, "shared_experts", shared, x) + sum(g * dot(y, w2[e], "ffn"), "top")
end

local function layer(x)
  local h = x + scope("attn", attend, scope("attn_norm", rmsnorm, x, "hidden", eps))
  return h + scope("moe", module, "moe", moe, scope("ffn_norm", rmsnorm, h, "hidden", eps))
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local table = param("embed", "vocab hidden")
local x = embed(tokens, table)
if pad >= 0 then x = where(eq(tokens, pad), stop_gradient(x), x) end
for i = 0, layers - 1 do
  x = scope("layers." .. i, layer, x)
end
x = scope("norm", rmsnorm, x, "hidden", eps)
local logits = dot(x, tied and table or param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(logits, labels, "vocab"), "batch seq"))
output("logits", logits)

train { batch=256, lr=3e-4, min_lr=3e-5, schedule="cosine", warmup=2000, clip=1 }
precision { policy="bf16" }

local attn, mlp = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."
hf {
  config = {
    model_type="qwen2_moe", architectures={"Qwen2MoeForCausalLM"},
    hidden_size=size("hidden"), num_hidden_layers=layers, vocab_size=size("vocab"), rms_norm_eps=eps,
    hidden_act="silu", tie_word_embeddings=tied, pad_token_id=pad >= 0 and pad or nil,
    max_position_embeddings=32768, rope_theta=theta, rope_scaling=scaling,
    num_attention_heads=size("kv") * size("group"), num_key_value_heads=size("kv"), head_dim=size("dim"),
    num_experts=size("expert"), num_experts_per_tok=chosen, norm_topk_prob=normed,
    moe_intermediate_size=size("ffn"), shared_expert_intermediate_size=size("shared"),
    decoder_sparse_step=1,
  },
  ["embed"]       = { "model.embed_tokens.weight", "vocab hidden" },
  ["norm.weight"] = { "model.norm.weight", "hidden" },
  ["head"]        = not tied and { "lm_head.weight", "vocab hidden" } or nil,
  ["layers.{i}.attn_norm.weight"] = { "model.layers.{i}.input_layernorm.weight", "hidden" },
  ["layers.{i}.attn.wq"]          = { attn .. "q_proj.weight", "(kv group dim) hidden" },
  ["layers.{i}.attn.wk"]          = { attn .. "k_proj.weight", "(kv dim) hidden" },
  ["layers.{i}.attn.wv"]          = { attn .. "v_proj.weight", "(kv dim) hidden" },
  ["layers.{i}.attn.bq"]          = { attn .. "q_proj.bias", "(kv group dim)" },
  ["layers.{i}.attn.bk"]          = { attn .. "k_proj.bias", "(kv dim)" },
  ["layers.{i}.attn.bv"]          = { attn .. "v_proj.bias", "(kv dim)" },
  ["layers.{i}.attn.wo"]          = { attn .. "o_proj.weight", "hidden (kv group dim)" },
  ["layers.{i}.ffn_norm.weight"]  = { "model.layers.{i}.post_attention_layernorm.weight", "hidden" },
  ["layers.{i}.moe.gate"]         = { mlp .. "gate.weight", "expert hidden" },
  ["layers.{i}.moe.w1"]           = { mlp .. "experts.{expert}.gate_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.w2"]           = { mlp .. "experts.{expert}.down_proj.weight", "hidden ffn" },
  ["layers.{i}.moe.w3"]           = { mlp .. "experts.{expert}.up_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.shared.gate"]  = { mlp .. "shared_expert_gate.weight", "1 hidden" },
  ["layers.{i}.moe.shared.w1"]    = { mlp .. "shared_expert.gate_proj.weight", "shared hidden" },
  ["layers.{i}.moe.shared.w2"]    = { mlp .. "shared_expert.down_proj.weight", "hidden shared" },
  ["layers.{i}.moe.shared.w3"]    = { mlp .. "shared_expert.up_proj.weight", "shared hidden" },
}
