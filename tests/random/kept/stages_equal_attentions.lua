-- two equal attentions are one: after a stage's text they were, before not
axes { n=4, m=3 }
local w = param("w", "m n", normal(1))
local function layer(x)
  local k = rename(w, {n="key"})
  return x + mean(attention(dot(w, k, "m"), k, "key"), "m")
end
local x = param("x", "n", normal(1))
for i = 0, 1 do x = scope("layers." .. i, layer, x) end
loss("l", mean(x * x, "n"))
