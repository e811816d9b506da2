axes { batch=2, seq=4, hidden=8 }
loss("l", mean(param("w", "hidden"), "hidden"))
train { lr="1e-3" }
