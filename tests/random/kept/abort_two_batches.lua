axes { batch=2, e=2, p=1, m=2, }
loss("l0", mean(dot(param("w0", "m e batch", ones), param("w2", "p e batch", 1), "e"), "m batch p"))
