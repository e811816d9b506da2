-- conditions mean what they mean in Lua, also when checked
local out = {}
local function p(...) for i = 1, select("#", ...) do out[#out+1] = tostring((select(i, ...))) end end
local function two() return 1, 2 end
p(two() and 3, (two()), not two(), nil or false, nil and 1 or 2 and 3, 1 < 2 and "a" or "b", not nil == true, #"ab" == 2 and -2^2 or 0)
local t = { a = 1 and 2, [1 and "x"] = 3, not false, f = function() if not false and (true or nil) then return "in" end end }
p(t.a, t.x, t[1], t.f())
local i = 0 repeat local z = i i = i + 1 until z >= 3 or z == 9 p(i)
while i > 0 and not (i == 2) do i = i - 1 end p(i)
if i == 3 then p "three" elseif i == 2 and true then p [[two]] else p 'else' end
for k = 1, 3 do if k == 2 then goto c end p(k) ::c:: end
local x <const> = 5 p(x // 2 ~= 2 or "ok", ("x"):rep(3) .. "y" and "z", 1 .. 2 == "12" and 'q')
p((two() or nil) and (function(...) return ... end)(1, 2))
assert(#out > 0) print(table.concat(out, " "))
axes{a=1} output("o", iota("a"))
