-- A matrix that a file has in FP8, and what a product of it is made of: rows of
-- the identity times w, read off the gradient of c; as q and s those of its
-- numbers and scales. No block divides its sizes.
axes { batch=1, seq=300, hidden=300, ffn={260, shard="tp"}, hb=3, fb=3 }
local tokens = input("tokens", "batch seq")
local p, w, c = param("p", "seq hidden"), param("w", "hidden ffn"), param("c", "seq ffn")
local x = where(ge(tokens, 0), p, 0)
local scale = pow2_scale(amax(w, "128x128", "hidden ffn", "hb fb"), 448)
local codes = f32(quantize(w, scale, "128x128", "hidden ffn", "hb fb", "e4m3"))
loss("l", sum(dot(x, w, "hidden") * c, "batch seq ffn"))
loss("q", sum(codes * f32(param("q", "hidden ffn")), "hidden ffn"))
loss("s", sum(1 / scale * f32(param("s", "hb fb")), "hb fb"))
train { clip=0, betas={ 0, 0.95 } }

hf {
  ["p"] = { "p", "seq hidden" },
  ["w"] = { "w", "ffn hidden" },
  ["c"] = { "c", "seq ffn" },
  ["q"] = { "q", "hidden ffn" },
  ["s"] = { "s", "hb fb" },
}
