axes { b=2, h=4 }
local x = param("x","b h",normal(1))
local y = x for i=1,61 do y = concat(y,y,"h") end
loss("l", sum(y,"b h"))
