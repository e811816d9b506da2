axes { batch=2, seq=8, hidden=4, vocab=16 }
local ids = input("tokens", "batch seq")
local x = embed(ids, param("w", "vocab hidden")) + embed(ids, state("old", "vocab hidden"))
hf { ["w"]={ "a", "vocab hidden" }, ["old"]={ "a", "vocab hidden" } }
loss("l", mean(x * x, "batch seq hidden"))
