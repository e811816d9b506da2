axes { batch=2, seq=4, hidden=8 }
local first = {}
local c = first
for i = 1, 100000 do
  c.c = {}
  c = c.c
end
hf { config=first }
