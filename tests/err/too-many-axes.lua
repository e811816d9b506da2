axes { a=2, b=2, c=2, d=2, e=2, f=2, g=2, h=2, i=2, j=2, k=2 }
local x = param("x", "a b c d e f") * param("y", "g h i j k")
