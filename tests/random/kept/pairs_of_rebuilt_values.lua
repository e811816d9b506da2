axes { batch={ 6, }, seq=3, h=6, k=4, e=2, f=7, p=4, q=6, v=6, m=4, n=1, mn=4, top3=6 }
local t11 = gather(param("w1", "p", 0.5), mod(iota("f"), 4), "p")
local g24, e24 = topk(gather(rename(t11, {f="r2"}) / attention(param("w2", "v", 0.3) * rename(iota("n"), {n="key1"}) - iota("n"), rename(input("x", "v batch n"), {n="key1"}), "key1"), iota("batch"), "v"), 7, "r2", "top5")
loss("l0", dot(param("w0", "f", 1), t11, "f"), 2)
loss("l1", mean(g24, "batch top5 n"), 0.3)
