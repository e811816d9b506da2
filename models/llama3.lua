-- Llama 3 8B: a dense model, for comparison (Grattafiori et al. 2024)
axes { batch=1, seq=4096, hidden=4096, kv=8, group=4, dim=128, ffn=14336, vocab=128256 }

local layers, eps, theta, scaling = 32, 1e-5, 5e5, nil   -- of positions, as config.json has it
local tied, biased, pad = false, false, -1               -- the head is the embedding; biases; a token without a gradient

local function project(x, name, from, to)
  local y = dot(x, param("w" .. name, from .. " " .. to), from)
  return biased and y + param("b" .. name, to, zeros) or y
end

local function attend(x)                                 -- grouped-query attention
  local q = rope(project(x, "q", "hidden", "kv group dim"), "dim", "seq", theta, { scaling=scaling })
  local k = rope(project(x, "k", "hidden", "kv dim"), "dim", "seq", theta, { scaling=scaling })
  local v = project(x, "v", "hidden", "kv dim")
  k, v = rename(k, {seq="key"}), rename(v, {seq="key"})
  local s = causal(dot(q, k, "dim") / math.sqrt(size("dim")), "seq", "key")
  return project(attention(s, v, "key"), "o", "kv group dim", "hidden")
end

local function ffn(x)
  local gate, up = param("w1", "hidden ffn"), param("w3", "hidden ffn")
  local y = swiglu(dot(x, gate, "hidden"), dot(x, up, "hidden"))
  return dot(y, param("w2", "ffn hidden"), "ffn")
end

local function layer(x)
  local h = x + scope("attn", attend, scope("attn_norm", rmsnorm, x, "hidden", eps))
  return h + scope("ffn", module, "mlp", ffn, scope("ffn_norm", rmsnorm, h, "hidden", eps))
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
    model_type="llama", architectures={"LlamaForCausalLM"},
    hidden_size=size("hidden"), num_hidden_layers=layers, vocab_size=size("vocab"), rms_norm_eps=eps,
    hidden_act="silu", tie_word_embeddings=tied, pad_token_id=pad >= 0 and pad or nil,
    max_position_embeddings=8192, rope_theta=theta, rope_scaling=scaling,
    num_attention_heads=size("kv") * size("group"), num_key_value_heads=size("kv"), head_dim=size("dim"),
    intermediate_size=size("ffn"), attention_bias=biased,
  },
  ["embed"]       = { "model.embed_tokens.weight", "vocab hidden" },
  ["norm.weight"] = { "model.norm.weight", "hidden" },
  ["head"]        = not tied and { "lm_head.weight", "vocab hidden" } or nil,
  ["layers.{i}.attn_norm.weight"] = { "model.layers.{i}.input_layernorm.weight", "hidden" },
  ["layers.{i}.attn.wq"] = { "model.layers.{i}.self_attn.q_proj.weight", "(kv group dim) hidden" },
  ["layers.{i}.attn.wk"] = { "model.layers.{i}.self_attn.k_proj.weight", "(kv dim) hidden" },
  ["layers.{i}.attn.wv"] = { "model.layers.{i}.self_attn.v_proj.weight", "(kv dim) hidden" },
  ["layers.{i}.attn.wo"] = { "model.layers.{i}.self_attn.o_proj.weight", "hidden (kv group dim)" },
  ["layers.{i}.ffn_norm.weight"] = { "model.layers.{i}.post_attention_layernorm.weight", "hidden" },
  ["layers.{i}.ffn.w1"]  = { "model.layers.{i}.mlp.gate_proj.weight", "ffn hidden" },
  ["layers.{i}.ffn.w2"]  = { "model.layers.{i}.mlp.down_proj.weight", "hidden ffn" },
  ["layers.{i}.ffn.w3"]  = { "model.layers.{i}.mlp.up_proj.weight", "ffn hidden" },
}
if biased then
  hf {
    ["layers.{i}.attn.bq"] = { "model.layers.{i}.self_attn.q_proj.bias", "(kv group dim)" },
    ["layers.{i}.attn.bk"] = { "model.layers.{i}.self_attn.k_proj.bias", "(kv dim)" },
    ["layers.{i}.attn.bv"] = { "model.layers.{i}.self_attn.v_proj.bias", "(kv dim)" },
    ["layers.{i}.attn.bo"] = { "model.layers.{i}.self_attn.o_proj.bias", "hidden" },
  }
end
