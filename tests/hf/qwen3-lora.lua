-- qwen3.lua with the adapters of PEFT's LoraConfig(r=4, lora_alpha=10)
local four = { rank=4, alpha=10 }
axes { batch=2, seq=32, hidden=64, kv=2, group=2, dim=24, ffn=24, expert=8, vocab=256 }

local function attn(x)
  local q = lora(x, param("wq", "hidden kv group dim"), "hidden", four)
  local k = dot(x, param("wk", "hidden kv dim"), "hidden")
  local v = rename(lora(x, param("wv", "hidden kv dim"), "hidden", four), {seq="key"})
  q = rope(scope("q_norm", rmsnorm, q, "dim", 1e-6), "dim", "seq", 1e6)
  k = rope(scope("k_norm", rmsnorm, k, "dim", 1e-6), "dim", "seq", 1e6)
  local s = dot(q, rename(k, {seq="key"}), "dim") / math.sqrt(size("dim"))
  return lora(attention(causal(s, "seq", "key"), v, "key"), param("wo", "kv group dim hidden"), "kv group dim", four)
end

local function moe(x)
  local p = softmax(f32(dot(x, param("gate", "hidden expert"), "hidden")), "expert")
  local g, e = topk(p, 2, "expert")
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local y = silu(dot(x, w1[e], "hidden")) * dot(x, w3[e], "hidden")
  return sum(g / sum(g, "top") * dot(y, param("w2", "expert ffn hidden")[e], "ffn"), "top")
end

local ids, labels = input("tokens", "batch seq"), input("labels", "batch seq")
labels = where(eq(labels, 7), -1, labels)
local x = embed(ids, param("embed", "vocab hidden"))
for i = 0, 1 do
  x = scope("layers."..i, function()
    local h = x + scope("attn", attn, scope("attn_norm", rmsnorm, x, "hidden", 1e-6))
    return h + scope("moe", moe, scope("ffn_norm", rmsnorm, h, "hidden", 1e-6))
  end)
end
local logits = dot(scope("norm", rmsnorm, x, "hidden", 1e-6), param("head", "hidden vocab"), "hidden")
local counted = sum(where(ge(labels, 0), 1.0, 0.0), "batch seq")
loss("lm", sum(cross_entropy(f32(logits), labels, "vocab"), "batch seq"), 1, counted)
output("logits", logits)

hf {
  ["embed"]                      = { "model.embed_tokens.weight", "vocab hidden" },
  ["layers.{i}.attn_norm.weight"] = { "model.layers.{i}.input_layernorm.weight", "hidden" },
  ["layers.{i}.attn.wq"]         = { "model.layers.{i}.self_attn.q_proj.weight", "(kv group dim) hidden" },
  ["layers.{i}.attn.wk"]         = { "model.layers.{i}.self_attn.k_proj.weight", "(kv dim) hidden" },
  ["layers.{i}.attn.wv"]         = { "model.layers.{i}.self_attn.v_proj.weight", "(kv dim) hidden" },
  ["layers.{i}.attn.wo"]         = { "model.layers.{i}.self_attn.o_proj.weight", "hidden (kv group dim)" },
  ["layers.{i}.attn.q_norm.weight"] = { "model.layers.{i}.self_attn.q_norm.weight", "dim" },
  ["layers.{i}.attn.k_norm.weight"] = { "model.layers.{i}.self_attn.k_norm.weight", "dim" },
  ["layers.{i}.ffn_norm.weight"] = { "model.layers.{i}.post_attention_layernorm.weight", "hidden" },
  ["layers.{i}.moe.gate"]        = { "model.layers.{i}.mlp.gate.weight", "expert hidden" },
  ["layers.{i}.moe.w1"]          = { "model.layers.{i}.mlp.experts.{expert}.gate_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.w2"]          = { "model.layers.{i}.mlp.experts.{expert}.down_proj.weight", "hidden ffn" },
  ["layers.{i}.moe.w3"]          = { "model.layers.{i}.mlp.experts.{expert}.up_proj.weight", "ffn hidden" },
  ["norm.weight"]                = { "model.norm.weight", "hidden" },
  ["head"]                       = { "lm_head.weight", "vocab hidden" },
}
train { freeze="* !*.lora_*", steps=10, lr=1e-3, weight_decay=0.1, no_decay="", clip=0 }
data  { train="tokens.npy" }
