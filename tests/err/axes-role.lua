axes { t=4, inner={ 8, role="fnn" } }
loss("l", sum(param("w", "t inner"), "t inner"))
