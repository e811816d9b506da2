-- Qwen3-30B-A3B: 30.5 billion parameters, 3.3 billion active (Yang et al. 2025)
axes { batch=1, seq=4096, hidden=2048, kv=4, group=8, dim=128,
       ffn=768, expert=128, vocab=151936 }

local layers, eps = 48, 1e-6
local chosen, theta, scaling = 8, 1e6, nil              -- experts of a token; of positions
local tied, pad = false, -1                              -- the head is the embedding; a token whose row has no gradient
local normed = true                                     -- their weights sum to 1

local function attend(x)                                 -- queries and keys are normalised
  local q = dot(x, param("wq", "hidden kv group dim"), "hidden")
  local k = dot(x, param("wk", "hidden kv dim"), "hidden")
  local v = dot(x, param("wv", "hidden kv dim"), "hidden")
  q = rope(scope("q_norm", rmsnorm, q, "dim", eps), "dim", "seq", theta, { scaling=scaling })
  k = rope(scope("k_norm", rmsnorm, k, "dim", eps), "dim", "seq", theta, { scaling=scaling })
  k, v = rename(k, {seq="key"}), rename(v, {seq="key"})
  local s = causal(dot(q, k, "dim") / math.sqrt(size("dim")), "seq", "key")
  return dot(attention(s, v, "key"), param("wo", "kv group dim hidden"), "kv group dim")
end

local function moe(x)
  local gate   = param("gate", "hidden expert")
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local w2     = param("w2", "expert ffn hidden")
  local p      = softmax(f32(dot(x, gate, "hidden")), "expert")
  local g, e   = topk(p, chosen, "expert")
  if normed then g = g / sum(g, "top") end
  local load   = mean(one_hot(e, "expert"), "batch seq top")
  loss("balance", size("expert") * sum(mean(p, "batch seq") * load, "expert"), 1e-3)
  local y = swiglu(dot(x, w1[e], "hidden"), dot(x, w3[e], "hidden"))
  return sum(g * dot(y, w2[e], "ffn"), "top")
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

hf {
  config = {
    model_type="qwen3_moe", architectures={"Qwen3MoeForCausalLM"},
    hidden_size=size("hidden"), num_hidden_layers=layers, vocab_size=size("vocab"), rms_norm_eps=eps,
    hidden_act="silu", tie_word_embeddings=tied, pad_token_id=pad >= 0 and pad or nil,
    max_position_embeddings=40960, rope_theta=theta, rope_scaling=scaling,
    num_attention_heads=size("kv") * size("group"), num_key_value_heads=size("kv"), head_dim=size("dim"),
    num_experts=size("expert"), num_experts_per_tok=chosen, norm_topk_prob=normed,
    moe_intermediate_size=size("ffn"), decoder_sparse_step=1, attention_bias=false,
  },
  ["embed"]       = { "model.embed_tokens.weight", "vocab hidden" },
  ["norm.weight"] = { "model.norm.weight", "hidden" },
  ["head"]        = not tied and { "lm_head.weight", "vocab hidden" } or nil,
  ["layers.{i}.attn_norm.weight"]   = { "model.layers.{i}.input_layernorm.weight", "hidden" },
  ["layers.{i}.attn.wq"]            = { "model.layers.{i}.self_attn.q_proj.weight", "(kv group dim) hidden" },
  ["layers.{i}.attn.wk"]            = { "model.layers.{i}.self_attn.k_proj.weight", "(kv dim) hidden" },
  ["layers.{i}.attn.wv"]            = { "model.layers.{i}.self_attn.v_proj.weight", "(kv dim) hidden" },
  ["layers.{i}.attn.wo"]            = { "model.layers.{i}.self_attn.o_proj.weight", "hidden (kv group dim)" },
  ["layers.{i}.attn.q_norm.weight"] = { "model.layers.{i}.self_attn.q_norm.weight", "dim" },
  ["layers.{i}.attn.k_norm.weight"] = { "model.layers.{i}.self_attn.k_norm.weight", "dim" },
  ["layers.{i}.ffn_norm.weight"]    = { "model.layers.{i}.post_attention_layernorm.weight", "hidden" },
  ["layers.{i}.moe.gate"]           = { "model.layers.{i}.mlp.gate.weight", "expert hidden" },
  ["layers.{i}.moe.w1"]             = { "model.layers.{i}.mlp.experts.{expert}.gate_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.w2"]             = { "model.layers.{i}.mlp.experts.{expert}.down_proj.weight", "hidden ffn" },
  ["layers.{i}.moe.w3"]             = { "model.layers.{i}.mlp.experts.{expert}.up_proj.weight", "ffn hidden" },
}
