axes { batch=2, seq=4, hidden=8 }
local w = param("w", "hidden")
scope("a", function()
  metric("m", mean(w, "hidden"))
  metric("m", mean(w * w, "hidden"))
end)
