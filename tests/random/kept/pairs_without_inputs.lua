axes { batch={ 4, }, seq=2, h=2, k=6, e=1, f=4, p={ 4, role="ffn" }, q=2, v=2, m=3, n=1, mn=3, key1=4, bucket2=4 }
loss("l0", mean(dropout(param("w0", "m", 0.7), 0.25), "m"))
