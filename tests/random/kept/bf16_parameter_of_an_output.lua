-- bf16: init wrote an fp32 constant to a parameter that only an output reads
axes { n=2, m=3 }
output("o", dot(param("w", "n", 1), param("u", "n m", normal(1)), "n"))
loss("l", param("x", "", 1))
