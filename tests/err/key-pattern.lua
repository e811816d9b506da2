axes { batch=2, seq=4, hidden=8 }
local scale, shift = param("norm.scale", "hidden"), param("norm.shift", "hidden")
train { no_decay={ "*.shift", "norm.scael" } }
loss("l", mean(scale * shift, "hidden"))
