-- Two projections whose operands go through numbers of 8 and 4 bits, in each
-- layout of scales: current per tensor, 1x128 by 128x128, MX, two-level NVFP4.
axes { batch=2, seq=16, hidden=256, ffn={256, shard="tp"}, vocab=256 }

local function both_ways(x, scale, inverse, layout, axes, blocks, to, pairs)
  local q = quantize(x, scale, layout, axes, blocks, to, pairs)
  return dequantize(q, inverse, layout, axes, blocks, pairs)
end

local function fp8(x, layout, axes, blocks, to)
  local s = pow2_scale(amax(x, layout, axes, blocks), to == "e4m3" and 448 or 57344)
  return both_ways(x, s, 1 / s, layout, axes, blocks, to)
end

local function mxfp8(x, axis, blocks)
  local inverse = e8m0(mx_inverse(amax(x, "1x32", axis, blocks), 448))
  return both_ways(x, mx_scale(inverse), inverse, "1x32", axis, blocks, "e4m3")
end

local function nvfp4(x, axis, blocks, axes)
  local t = amax_scale(amax(x, "tensor", axes), 6 * 448)
  local s = e4m3(nv_inverse(amax(x, "1x16", axis, blocks), t))
  return both_ways(x, nv_scale(s, t), s / t, "1x16", axis, blocks, "e2m1x2", "pairs")
end

local tokens, labels = input("tokens", "batch seq"), input("labels", "batch seq")
local x = fp8(embed(tokens, param("embed", "vocab hidden")), "row", "hidden", "", "e5m2")
local w1, w2 = param("w1", "hidden ffn"), param("w2", "ffn hidden")
local h = dot(fp8(x, "1x128", "hidden", "hb", "e4m3"),
              fp8(w1, "128x128", "hidden ffn", "hb fb", "e4m3"), "hidden")
local y = dot(mxfp8(silu(h), "ffn", "fm"), nvfp4(w2, "ffn", "fn", "ffn hidden"), "ffn")
local logits = dot(rmsnorm(x + y, "hidden"), param("head", "hidden vocab"), "hidden")
loss("lm", mean(cross_entropy(logits, labels, "vocab"), "batch seq"))
train { steps=50, lr=3e-3, clip=1 }
data { train="../../LICENSE" }
