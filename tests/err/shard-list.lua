axes { t=4, inner=8 }
fold { tp={ "inner", 2 } }
loss("l", sum(param("w", "t inner"), "t inner"))
