axes { t=4, inner=8 }
fold { tp={ 2, "iner" } }
loss("l", sum(param("w", "t inner"), "t inner"))
