-- What Lua itself offers to models, each once: mutants of it try the closed environment.
axes { batch=2, seq=4, hidden=8, ["expert"]=4, dim=6, key=0x4 }
local x <const>, ids = input("x", "batch seq hidden"), input("tokens", "batch seq")
local list, name = { 1, 2, 3; n=3, [2^53|0]="far", ["a b"]=1e-3 }, [==[long ]] string]==]
goto start
::start::
for i = #list, 1, -1 do if i % 2 == 0 and i ~= 3 or not list[i] then goto next end list[i] = i // 1 | 0x10 & ~3 << 2 ::next:: end
for k, v in pairs(list) do list[k] = type(v) == "number" and v ^ 0.5 or tostring(v):rep(3, "-") end
for k in next, { a=1, b=2 } do assert(rawget(list, k) == nil and rawequal(k, k)) end
local meta = { __index=function(t, k) return rawlen(t) + #k end, __call=function(self, ...) return select("#", ...), ... end,
  __add=function(a, b) return 1 end, __len=function() return 7 end, __close=function() end, __tostring=function() return "t" end }
do local t <close> = setmetatable({}, meta) list.n = t(nil, 2, "x") + t.abc + #t + (t + t) end
local n = math.max(math.tointeger(3.0), math.floor(math.pi), math.random(5), math.fmod(7, 3) // 1, 0xA, 0x.8p1)
local s = string.format("%5.2f|%q|%s|%-8d|%x|%%", n, "a\n\0b", x, 3, 255) .. name:gsub("%w+", string.upper):sub(-4, -1)
s = s .. table.concat({ ("%d"):format(n), utf8.char(228, 0x20AC), string.char(65), #s }, ",", 1, 3)
s = s:find("(a*(.)%w(%s*))", 1) or s:match("^(.-)%s") or s:byte(1, -1) or select(-1, 1, 2)
local packed = string.pack("<i4 z s1 d", -7, "zero", "str", 0.5)
list[1] = string.unpack("<i4", packed) + string.packsize("i4 i8") + (utf8.len("\u{e4}\z
    b") or 0)
table.sort(list, function(a, b) return tostring(a) < tostring(b) end)
table.move({ 1, 2, 3 }, 1, 3, 2, list) table.insert(list, 1, table.remove(list)) list = table.pack(table.unpack(list, 1, 3))
local function fact(k, ...) if k <= 1 then return 1, ... end return k * (fact(k - 1, ...)) end
function helper(a) return a * fact(3) end
while n > 0 do n = n - 1 if n < 2 then break end end
repeat local done = true until done
local y = scope("layers.0", helper, -x + 2 * x / 3 - x ^ 2) * param("w", "hidden", normal(1 / 8))
metric("m", mean(f32(eq(ids % 3, 1)), "batch seq"))
loss("l", mean(y, "batch seq hidden"), 0.5, sum(f32(ge(ids, 0)), "batch seq"))
train { steps=1e3, betas={ 0.9, 0.95 }, no_decay={ "w", "*.b" }, schedule="cosine" }
data { train={ { 0.5, "a" }, { 0.5, "b" } }, valid={ wiki="c" }, template=false, split={ 9, 1, 0 } }
hf { w={ "model.w", "hidden" }, config={ model_type="m", sizes={ 1, 2.5, "null" }, deep={ a={ b=true } } } }
print(s, list, helper, x, nil, true, error and 1, _VERSION)
