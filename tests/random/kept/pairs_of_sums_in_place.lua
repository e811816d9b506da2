axes { batch={ 3, }, seq=7, h=5, k=5, e=3, f=6, p=3, q=5, v=3, m=1, n=3, mn=3, hidden=6, vocab=9, key1=9 }
local t1 = param("w0", "vocab hidden", 1)
local t6 = rename(t1, {vocab="key1"})
loss("l0", mean(embed(input("tokens", "batch seq"), t1), "batch seq hidden") + sum(dot(dot(t1, t6, "hidden"), t6, "key1"), "vocab hidden"), 1)
