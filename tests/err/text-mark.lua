-- a byte order mark, and lines that end in CR LF
axes { batch=2, seq=4 }
local y = iota("sec")
