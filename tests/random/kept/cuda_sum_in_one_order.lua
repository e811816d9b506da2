-- seed 59247: two stages of a kernel made the sum of a softmax in two orders, so
-- the largest probability was none of those that were rebuilt: no gradient
axes { top=1, batch={ 7, }, seq={ 4, role="heads" }, h=5, k=3, e=3, f=1, p=2, q=4, v=1, m=1, n=2, mn=2 }
local t1 = param("w0", "seq n e", 0.5)
local g7, e7, p7 = softmax_top1(dot(t1, param("w2", "seq h", 1), "seq"), "h")
local t15 = rename(dot(t1, param("w3", "h seq mn", 0.7)[e7], "seq"), {e="key2"})
local t23 = param("w5", "n seq", 0.7)
loss("l0", sum(scatter_add(max(p7, "e"), mod(iota("h"), 4), t23, "seq") * t23, "n seq") + sum(attention(param("x21", "e top key2", 1), t15, "key2"), "e top n mn"))
