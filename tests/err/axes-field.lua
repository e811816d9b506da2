axes { t=4, inner={ size=8, role="ffn" } }
loss("l", sum(param("w", "t inner"), "t inner"))
