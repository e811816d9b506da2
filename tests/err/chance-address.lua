axes { batch=2, seq=4, hidden=8 }
print(string.format("%p", {}))
