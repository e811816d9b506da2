-- pleat compile % -o /dev/null
axes { t=64, q=512, inner=600, other={ 600, role="other" }, vocab=100 }
local x = gather(param("embed", "vocab q"), input("x", "t", "i32"), "vocab")
local y = tanh(dot(x, param("up", "q inner"), "q"))
local z = tanh(dot(dot(y, param("down", "inner q"), "inner"), param("up2", "q other"), "q"))
loss("l", mean(dot(z, param("down2", "other q"), "other"), "t q"))
fold { tp=2 }
