axes { k=5, }
loss("l0", mean(gather(param("w1", "k", 0.5), mod(iota("k") * 4, 6), "k"), "k "), 2)
