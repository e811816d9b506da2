axes { batch=2, seq=4, hidden=8 }
local c = {}
c.c = c
hf { config=c }
