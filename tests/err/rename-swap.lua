axes { batch=2, seq=8, hidden=4 }
local x = input("x", "batch seq hidden") * param("w", "hidden")
local y = rename(x, {batch="seq", seq="batch"})          -- [seq=2 batch=8 hidden=4]
loss("lm", mean(x * y, "batch seq hidden"))
