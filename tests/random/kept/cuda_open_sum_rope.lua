axes { top1=1, seq=2, h=1, }
local g9, e9 = param("x35", "top1", 1)
loss("l1", mean(param("x29", "seq top1", 1), "top1 seq") + mean(scope("n10", rmsnorm, gt(rope(param("w0", "seq h", 1), "seq", "h", 1e4), g9), "h", 2), "seq h top1"))
