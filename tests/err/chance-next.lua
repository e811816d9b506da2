axes { batch=2, seq=4, hidden=8 }
print(next({ a=1 }, "b"))
