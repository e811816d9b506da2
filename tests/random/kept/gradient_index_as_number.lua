axes { p=3, mn=3}
local g11, e11 = topk(param("w2", "mn p", ones), 1, "mn", "top1")
local t17 = param("x12", "mn p", 1) * e11
loss("l0", mean(t17 * mean(t17, "p"), "mn p top1"), 2)
