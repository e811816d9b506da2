-- ZeRO-3: a parameter that post reads was taken for the gather of a forward
axes { batch={ 1, }, seq=5, h=3, k=3, e=6, f=7, p=2, q=3, v={ 6, role="ffn" }, m=1, n=4, mn=4 }
local t10 = param("w2", "k", 0.5) * param("w0", "p seq", 0.5)
update(state("s0", "k seq", zeros), mean(t10, "p"))
loss("l2", mean(t10, "k p seq"))
