axes { batch=2, seq=8, hidden=4 }
local x = input("x", "batch seq hidden")
for i = 0, 1 do x = x * param("layers." .. i .. ".norm", "hidden") end
hf {
  config = { num_hidden_layers=3 },
  ["layers.{i}.norm"] = { "model.layers.{i}.input_layernorm.weight", "hidden" },
}
loss("l", mean(x * x, "batch seq hidden"))
