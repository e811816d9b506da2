-- Mixtral 8x7B: 46.7 billion parameters, 12.9 billion active (Jiang et al. 2024)
axes { batch=1, seq=4096, hidden=4096, kv=8, group=4, dim=128,
       ffn=14336, expert=8, vocab=32000 }

local layers, eps = 32, 1e-5
local chosen, theta, scaling, window = 2, 1e6, nil, 0   -- experts of a token; of positions; 0: sees all before
local tied, pad = false, -1                              -- the head is the embedding; a token whose row has no gradient

local function attend(x)                                 -- grouped-query attention
  local q = dot(x, param("wq", "hidden kv group dim"), "hidden")
  local k = dot(x, param("wk", "hidden kv dim"), "hidden")
  local v = dot(x, param("wv", "hidden kv dim"), "hidden")
  q, k = rope(q, "dim", "seq", theta, { scaling=scaling }), rope(k, "dim", "seq", theta, { scaling=scaling })
  k, v = rename(k, {seq="key"}), rename(v, {seq="key"})
  local s = causal(dot(q, k, "dim") / math.sqrt(size("dim")), "seq", "key")
  if window > 0 and window < size("seq") then s = where(lt(iota("seq") - iota("key"), window), s, -inf) end
  return dot(attention(s, v, "key"), param("wo", "kv group dim hidden"), "kv group dim")
end

local function moe(x)
  local gate   = param("gate", "hidden expert")
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local w2     = param("w2", "expert ffn hidden")
  local p      = softmax(f32(dot(x, gate, "hidden")), "expert")
  local g, e   = topk(p, chosen, "expert")                    -- e is an index into the axis "expert"
  g = g / sum(g, "top")
  local load   = mean(one_hot(e, "expert"), "batch seq top")
  loss("balance", size("expert") * sum(mean(p, "batch seq") * load, "expert"), 0.01)
  local y = swiglu(dot(x, w1[e], "hidden"), dot(x, w3[e], "hidden"))
  return sum(g * dot(y, w2[e], "ffn"), "top")            -- sum of g_i E_i(x)
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
    model_type="mixtral", architectures={"MixtralForCausalLM"},
    hidden_size=size("hidden"), num_hidden_layers=layers, vocab_size=size("vocab"), rms_norm_eps=eps,
    hidden_act="silu", tie_word_embeddings=tied, pad_token_id=pad >= 0 and pad or nil,
    max_position_embeddings=32768, rope_theta=theta, rope_scaling=scaling,
    num_attention_heads=size("kv") * size("group"), num_key_value_heads=size("kv"), head_dim=size("dim"),
    num_local_experts=size("expert"), num_experts_per_tok=chosen, intermediate_size=size("ffn"),
    sliding_window=window > 0 and window or "null",
  },
  ["embed"]       = { "model.embed_tokens.weight", "vocab hidden" },
  ["norm.weight"] = { "model.norm.weight", "hidden" },
  ["head"]        = not tied and { "lm_head.weight", "vocab hidden" } or nil,
  ["layers.{i}.attn_norm.weight"] = { "model.layers.{i}.input_layernorm.weight", "hidden" },
  ["layers.{i}.attn.wq"]  = { "model.layers.{i}.self_attn.q_proj.weight", "(kv group dim) hidden" },
  ["layers.{i}.attn.wk"]  = { "model.layers.{i}.self_attn.k_proj.weight", "(kv dim) hidden" },
  ["layers.{i}.attn.wv"]  = { "model.layers.{i}.self_attn.v_proj.weight", "(kv dim) hidden" },
  ["layers.{i}.attn.wo"]  = { "model.layers.{i}.self_attn.o_proj.weight", "hidden (kv group dim)" },
  ["layers.{i}.ffn_norm.weight"] = { "model.layers.{i}.post_attention_layernorm.weight", "hidden" },
  ["layers.{i}.moe.gate"] = { "model.layers.{i}.block_sparse_moe.gate.weight", "expert hidden" },
  ["layers.{i}.moe.w1"]   = { "model.layers.{i}.block_sparse_moe.experts.{expert}.w1.weight", "ffn hidden" },
  ["layers.{i}.moe.w2"]   = { "model.layers.{i}.block_sparse_moe.experts.{expert}.w2.weight", "hidden ffn" },
  ["layers.{i}.moe.w3"]   = { "model.layers.{i}.block_sparse_moe.experts.{expert}.w3.weight", "ffn hidden" },
}
