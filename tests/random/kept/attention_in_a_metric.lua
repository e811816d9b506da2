-- metric of an attention of a mean over batch: post has it in another type
axes { key2=1, batch={ 5, role="batch" }, seq=7, h=6, k=4, e=6, f=2, p=4, q=6, v=3, m=1, n=4, mn=4, bucket4=4 }
local t9 = param("x22", "key2 k", 1)
local t17 = rename(attention(dot(mean(param("w1", "batch e k", 1), "batch"), t9, "k"), t9, "key2"), {k="key3"})
metric("m0", mean(lt(dot(eq(iota("k"), param("x10", "key3", 1)), t17, "key3"), param("w5", "m", 0.5)), "k e m"))
loss("l0", param("x0", "", 1), 2)
