axes { batch=1, seq=3, key1=4, m=1, f=2, n=2, key2=3}
local t7 = dot(param("x33", "seq m f n", 1), param("x32", "seq m key1 n", 1), "seq")
loss("l0", sum(attention(t7, param("x29", "seq m key1 n", 1), "key1"), "m f n seq") + mean(dropout(t7, 0.5), "m f n key1"))
