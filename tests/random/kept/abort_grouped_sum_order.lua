-- seed 11872: summed axes in another order than the weights have them
axes { top=1, batch=3, seq=1, f=3, mn=12, bucket2=4, bucket3=4 }
local g20, e20, p20 = softmax_top1(param("x8", "mn", normal(1)), "mn")
loss("l0", mean(merge(dot(param("x5", "top f", normal(1)), param("w6", "mn f bucket2 bucket3", normal(0.7))[e20], "f"), "bucket3 bucket2", "u6"), "top u6"))
