axes { batch = { 2 }, hidden = { 4 } }
train { offload = { "none", "moments" } }
