axes { m=1, mn=1}
local g11, e11 = topk(param("w2", "mn ", ones), 1, "mn", "top1")
loss("l0", mean(max(param("w1", "mn m", 1), "mn") * one_hot(e11, "mn"), "m mn top1"), 2)
