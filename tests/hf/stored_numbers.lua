-- As stored.lua, but that only a product reads the matrix: it may be kept as
-- numbers of 8 bits and scales.
axes { batch=1, seq=300, hidden=300, ffn=260, hb=3, fb=3 }
local tokens = input("tokens", "batch seq")
local p, w, c = param("p", "seq hidden"), param("w", "hidden ffn"), param("c", "seq ffn")
loss("l", sum(dot(where(ge(tokens, 0), p, 0), w, "hidden") * c, "batch seq ffn"))
loss("q", sum(param("q", "hidden ffn"), "hidden ffn"))
loss("s", sum(param("s", "hb fb"), "hb fb"))

hf {
  ["p"] = { "p", "seq hidden" },
  ["w"] = { "w", "ffn hidden" },
  ["c"] = { "c", "seq ffn" },
  ["q"] = { "q", "hidden ffn" },
  ["s"] = { "s", "hb fb" },
}
