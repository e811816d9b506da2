-- seed 53526: what all threads of a held row read was overwritten by the first;
-- a sum of their own was taken for a meeting (on a real GPU a race of warps)
axes { batch={ 7, }, seq=3, h=7, k=1, e=1, f=2, p=6, q=5, v=1, m=3, n=1, mn=3 }
local t3 = param("w2", "k p m", 1)
local t5 = t3 + t3
local t6 = cross_entropy(t5 * 0.75, iota("k"), "m")
local t9 = dropout(t6, 0.5)
loss("l0", sum(where(ge(tanh(t6) - gather(param("w1", "mn", ones), iota("f"), "mn"), t5 + 0.011), t5, 0.5), "k p f m"))
loss("l1", sum(rsqrt(t9 * t9 + 0.2), "k p"), 1)
