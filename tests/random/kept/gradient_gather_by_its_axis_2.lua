axes { seq=5, }
loss("l0", mean(gather(param("x5", "seq ", 1), mod(iota("seq") * 4, 5), "seq"), "seq "), 1)
