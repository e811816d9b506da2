-- pleat compile % train.batch=6 -o /dev/null
axes { batch=2, seq=8, hidden=4 }
local x = input("x", "batch seq hidden")
for i = 0, 3 do
  x = scope("layers." .. i, function(y) return silu(y * param("w", "hidden")) end, x)
end
loss("l", mean(x * x, "batch seq hidden"))
fold { pp=2, vpp=2, schedule="dualpipev" }
