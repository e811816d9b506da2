axes { top=2, batch={ 4, }, seq=5, h=6, k=7, e=1, f=4, p={ 5, role="other" }, q=3, v=2, m=2, n=2, mn=4, groups2=1, r1=3 }
local g13, e13 = topk(softmax(limit_groups(param("x22", "r1 p", 1), "p", "groups2", 1, 1), "p"), 2, "p")
loss("l0", sum(cross_entropy(sum(dot(param("x18", "r1 top n", 1) * g13, param("w6", "p n groups2", 0.7)[e13], "n"), "top"), iota("r1"), "groups2"), "r1"))
