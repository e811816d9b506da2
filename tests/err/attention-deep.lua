axes { batch=2, seq=4, hidden=8 }
local x = input("x", "batch seq hidden")
local k = rename(x, {seq="key"})
local s = dot(x, k, "hidden")
for i = 1, 6000 do s = -s end
local y = attention(s, k, "key")
loss("l", mean(y, "batch seq hidden"))
