-- OLMoE-1B-7B: 6.9 billion parameters, 1.3 billion active (Muennighoff et al. 2024)
axes { batch=1, seq=4096, hidden=2048, heads=16, dim=128, ffn=1024, expert=64, vocab=50304 }

local layers, eps = 16, 1e-5
local chosen, theta, scaling = 8, 1e4, nil              -- experts of a token; of positions
local tied, pad = false, -1                              -- the head is the embedding; a token whose row has no gradient
local normed = false                                    -- their weights sum to 1

local function attend(x)                                 -- all heads are normalised together
  local q = dot(x, param("wq", "hidden heads dim"), "hidden")
  local k = dot(x, param("wk", "hidden heads dim"), "hidden")
  local v = dot(x, param("wv", "hidden heads dim"), "hidden")
  q = rope(scope("q_norm", rmsnorm, q, "heads dim", eps), "dim", "seq", theta, { scaling=scaling })
  k = rope(scope("k_norm", rmsnorm, k, "heads dim", eps), "dim", "seq", theta, { scaling=scaling })
  k, v = rename(k, {seq="key"}), rename(v, {seq="key"})
  local s = causal(dot(q, k, "dim") / math.sqrt(size("dim")), "seq", "key")
  return dot(attention(s, v, "key"), param("wo", "heads dim hidden"), "heads dim")
end

local function moe(x)
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local w2     = param("w2", "expert ffn hidden")
  local logits = f32(dot(x, param("gate", "hidden expert"), "hidden"))
  local p      = softmax(logits, "expert")
  local g, e   = topk(p, chosen, "expert")
  if normed then g = g / sum(g, "top") end
  loss("balance", balance_loss(p, chosen, "expert", "batch seq"), 0.01)
  loss("z", z_loss(logits, "expert", "batch seq"), 1e-3)
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

train { batch=1024, lr=4e-4, min_lr=4e-5, schedule="cosine", warmup=2000, clip=1 }
precision { policy="bf16" }

local attn, mlp = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."
hf {
  config = {
    model_type="olmoe", architectures={"OlmoeForCausalLM"},
    hidden_size=size("hidden"), num_hidden_layers=layers, vocab_size=size("vocab"), rms_norm_eps=eps,
    hidden_act="silu", tie_word_embeddings=tied, pad_token_id=pad >= 0 and pad or nil,
    max_position_embeddings=4096, rope_theta=theta, rope_scaling=scaling,
    num_attention_heads=size("heads"), num_key_value_heads=size("heads"), head_dim=size("dim"),
    num_experts=size("expert"), num_experts_per_tok=chosen, norm_topk_prob=normed,
    intermediate_size=size("ffn"), attention_bias=false,
  },
  ["embed"]       = { "model.embed_tokens.weight", "vocab hidden" },
  ["norm.weight"] = { "model.norm.weight", "hidden" },
  ["head"]        = not tied and { "lm_head.weight", "vocab hidden" } or nil,
  ["layers.{i}.attn_norm.weight"]   = { "model.layers.{i}.input_layernorm.weight", "hidden" },
  ["layers.{i}.attn.wq"]            = { attn .. "q_proj.weight", "(heads dim) hidden" },
  ["layers.{i}.attn.wk"]            = { attn .. "k_proj.weight", "(heads dim) hidden" },
  ["layers.{i}.attn.wv"]            = { attn .. "v_proj.weight", "(heads dim) hidden" },
  ["layers.{i}.attn.wo"]            = { attn .. "o_proj.weight", "hidden (heads dim)" },
  ["layers.{i}.attn.q_norm.weight"] = { attn .. "q_norm.weight", "(heads dim)" },
  ["layers.{i}.attn.k_norm.weight"] = { attn .. "k_norm.weight", "(heads dim)" },
  ["layers.{i}.ffn_norm.weight"]    = { "model.layers.{i}.post_attention_layernorm.weight", "hidden" },
  ["layers.{i}.moe.gate"]           = { mlp .. "gate.weight", "expert hidden" },
  ["layers.{i}.moe.w1"]             = { mlp .. "experts.{expert}.gate_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.w2"]             = { mlp .. "experts.{expert}.down_proj.weight", "hidden ffn" },
  ["layers.{i}.moe.w3"]             = { mlp .. "experts.{expert}.up_proj.weight", "ffn hidden" },
}
