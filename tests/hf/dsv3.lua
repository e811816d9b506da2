-- DeepSeek-V3 as transformers computes it: latent attention with YaRN, a dense
-- layer, then sigmoid routing with bias and groups beside a shared expert
axes { batch=2, seq=32, hidden=64, heads=4, nope=16, rot=8, dim=12, qr=24, kvr=16,
       dense=48, ffn=20, expert=8, group=4, vocab=256 }

local yarn = { factor=40, beta_fast=32, beta_slow=1, original=16, attention_factor=1 }
local mscale = 0.1 * math.log(40) + 1

local function turn(x)
  return rope(x, "rot", "seq", 1e4, { interleaved=true, yarn=yarn })
end

local function mla(x)
  local cq  = scope("q_norm", rmsnorm, dot(x, param("wq_a", "hidden qr"), "hidden"), "qr", 1e-6)
  local ckv = scope("kv_norm", rmsnorm, dot(x, param("wkv_a", "hidden kvr"), "hidden"), "kvr", 1e-6)
  local qn = dot(cq, param("wq_nope", "qr heads nope"), "qr")
  local qr = turn(dot(cq, param("wq_rope", "qr heads rot"), "qr"))
  local kr = rename(turn(dot(x, param("wk_rope", "hidden rot"), "hidden")), {seq="key"})
  local kn = rename(dot(ckv, param("wk_nope", "kvr heads nope"), "kvr"), {seq="key"})
  local v  = rename(dot(ckv, param("wv", "kvr heads dim"), "kvr"), {seq="key"})
  local s = (dot(qn, kn, "nope") + dot(qr, kr, "rot")) * (mscale^2 / math.sqrt(size("nope") + size("rot")))
  return dot(attention(causal(s, "seq", "key"), v, "key"), param("wo", "heads dim hidden"), "heads dim")
end

local function ffn(x, f)
  local gate, up = dot(x, param("w1", "hidden "..f), "hidden"), dot(x, param("w3", "hidden "..f), "hidden")
  return dot(silu(gate) * up, param("w2", f.." hidden"), f)
end

local function router(x)
  local s    = sigmoid(f32(dot(x, param("gate", "hidden expert"), "hidden")))
  local byg  = split(stop_gradient(s) + state("bias", "expert"), "expert", "group member")
  local _, n = topk(sum(topk(byg, 2, "member"), "top"), 2, "group")
  local keep = any(one_hot(n, "group"), "top")
  local _, e = topk(merge(where(keep, byg, -inf), "group member", "expert"), 2, "expert")
  local g    = gather(s, e)
  return 2.5 * g / (sum(g, "top") + 1e-20), e
end

local function moe(x)
  local g, e = scope("router", router, x)
  local w1, w3 = param("w1", "expert hidden ffn"), param("w3", "expert hidden ffn")
  local y = silu(dot(x, w1[e], "hidden")) * dot(x, w3[e], "hidden")
  return scope("shared", ffn, x, "ffn") + sum(g * dot(y, param("w2", "expert ffn hidden")[e], "ffn"), "top")
end

local ids, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = embed(ids, param("embed", "vocab hidden"))
for i = 0, 1 do
  x = scope("layers."..i, function()
    local h = x + scope("attn", mla, scope("attn_norm", rmsnorm, x, "hidden", 1e-6))
    local z = scope("ffn_norm", rmsnorm, h, "hidden", 1e-6)
    return h + (i < 1 and scope("ffn", ffn, z, "dense") or scope("moe", moe, z))
  end)
end
local logits = dot(scope("norm", rmsnorm, x, "hidden", 1e-6), param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(f32(logits), labels, "vocab"), "batch seq"))
output("logits", logits)

local layer = "model.layers.{i}."
hf {
  ["embed"]                      = { "model.embed_tokens.weight", "vocab hidden" },
  ["layers.{i}.attn_norm.weight"] = { layer.."input_layernorm.weight", "hidden" },
  ["layers.{i}.attn.wq_a"]       = { layer.."self_attn.q_a_proj.weight", "qr hidden" },
  ["layers.{i}.attn.q_norm.weight"] = { layer.."self_attn.q_a_layernorm.weight", "qr" },
  ["layers.{i}.attn.{wq_nope,wq_rope}"] = { layer.."self_attn.q_b_proj.weight", "(heads (nope|rot)) qr" },
  ["layers.{i}.attn.{wkv_a,wk_rope}"] = { layer.."self_attn.kv_a_proj_with_mqa.weight", "(kvr|rot) hidden" },
  ["layers.{i}.attn.kv_norm.weight"] = { layer.."self_attn.kv_a_layernorm.weight", "kvr" },
  ["layers.{i}.attn.{wk_nope,wv}"] = { layer.."self_attn.kv_b_proj.weight", "(heads (nope|dim)) kvr" },
  ["layers.{i}.attn.wo"]         = { layer.."self_attn.o_proj.weight", "hidden (heads dim)" },
  ["layers.{i}.ffn_norm.weight"] = { layer.."post_attention_layernorm.weight", "hidden" },
  ["layers.{i}.ffn.w1"]          = { layer.."mlp.gate_proj.weight", "dense hidden" },
  ["layers.{i}.ffn.w2"]          = { layer.."mlp.down_proj.weight", "hidden dense" },
  ["layers.{i}.ffn.w3"]          = { layer.."mlp.up_proj.weight", "dense hidden" },
  ["layers.{i}.moe.router.gate"] = { layer.."mlp.gate.weight", "expert hidden" },
  ["layers.{i}.moe.router.bias"] = { layer.."mlp.gate.e_score_correction_bias", "expert" },
  ["layers.{i}.moe.shared.w1"]   = { layer.."mlp.shared_experts.gate_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.shared.w2"]   = { layer.."mlp.shared_experts.down_proj.weight", "hidden ffn" },
  ["layers.{i}.moe.shared.w3"]   = { layer.."mlp.shared_experts.up_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.w1"]          = { layer.."mlp.experts.{expert}.gate_proj.weight", "ffn hidden" },
  ["layers.{i}.moe.w2"]          = { layer.."mlp.experts.{expert}.down_proj.weight", "hidden ffn" },
  ["layers.{i}.moe.w3"]          = { layer.."mlp.experts.{expert}.up_proj.weight", "ffn hidden" },
  ["norm.weight"]                = { "model.norm.weight", "hidden" },
  ["head"]                       = { "lm_head.weight", "vocab hidden" },
}
train { steps=10, lr=1e-3, weight_decay=0.1, no_decay="", clip=0 }
data  { train="tokens.npy" }
