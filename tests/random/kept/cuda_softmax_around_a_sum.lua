-- target=cuda: a largest value found beside the sum of its softmax, which has a sum inside
axes { top=2, r1=3, p=5, n=2, c=3, groups=1 }
local x = limit_groups(param("x22", "r1 p", normal(1)), "p", "groups", 1, 1)
local g, e = topk(softmax(x, "p"), 2, "p")
local y = dot(param("x18", "r1 top n", normal(1)) * g, param("w6", "p n c", normal(0.7))[e], "n")
loss("l0", sum(cross_entropy(sum(y, "top"), iota("r1"), "c"), "r1"))
