#!/bin/sh
# deep: what is made of itself many times over. Where a value is read at two
# places, a plan that wrote it out for each would double with every step; it may
# grow with the square of the depth, so twice as deep is at most five times as
# long, and needs little memory.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/deep
rm -rf "$dir" && mkdir -p "$dir" && cd "$dir" || exit 2
bad=0
(ulimit -v 2000000 && $PLEAT doctor >said 2>&1) && small="ulimit -v 2000000" || small=:

# model DEPTH BODY: x has two axes, y is large, c made of constants, e an index
model() {
    cat <<EOF
axes { n=4, n2=4, m=3, nm=12, z=8000 }
local x, y = param("x", "n m", normal(1)), param("y", "z", normal(1))
local c, e = iota("n"), mod(iota("n") + 1, 4)
for i = 1, $1 do
    $2
end
loss("l", mean(x * x, "n m") + mean(tanh(y), "z") + mean((c + e) * sum(x, "m"), "n"))
EOF
}

# bytes DEPTH TARGET BODY: of the plan; nothing where there is none
bytes() {
    model "$1" "$3" >model.lua
    rm -f plan
    ($small && ulimit -t 60 && exec $PLEAT compile model.lua target="$2" -o plan) >said 2>&1
    [ -f plan ] && wc -c <plan
}

while read -r body; do
    for target in host cuda; do
        one=$(bytes 16 $target "$body") two=$(bytes 32 $target "$body")
        if [ "$two" ] && [ "$two" -le $((5 * one)) ]; then
            echo "ok - deep: $target: $body"
        else
            echo "not ok - deep: $target: $body"
            echo "# ${one:-no plan} and ${two:-no plan}: $(tail -n 1 said)"
            bad=1
        fi
    done
done <<'EOF'
x = slice(concat(x, x, "n"), "n", 1, 4)
x = slice(concat(x, tanh(x), x, "n"), "n", 3, 4)
x = concat(slice(x, "n", 1, 3), slice(x, "n", 0, 1), "n")
x = x + concat(slice(x, "n", 0, 2), slice(x, "n", 2, 2), "n")
x = slice(x, "n", 0, 3) x = concat(x, slice(x, "n", 0, 1), "n")
x = shift(x, "n", 1, true) + x
x = shift(x, "n", 1) * shift(x, "m", -1)
x = where(gt(x, 0), shift(x, "n", 1), shift(x, "n", -1))
x = x + split(merge(x, "m n", "nm"), "nm", "n m")
x = x + gather(x, argmax(x, "m"), "m")
x = x + gather(x, mod(iota("n") + 1, 4), "n")
x = rename(scatter_add(x, index(e, "n2"), rename(x, { n="n2" })), { n2="n" }) + x
local g, k = topk(x, 2, "m") x = x + sum(one_hot(k, "m") * g, "top")
x = x + sum(x, "m") - max(x, "n")
x = x - logsumexp(x, "m") + softmax(x, "n")
x = x + sum(dot(x, rename(x, { n="n2" }), "m"), "n2") + cumsum(x, "n")
x = f32(bf16(x)) * stop_gradient(x) + dropout(x, 0.5)
y = y * y
y = where(gt(y, 0), y * 2, y * 3)
y = slice(concat(y, y, "z"), "z", 5, 8000)
c = c * c + c
c = slice(concat(c, c, "n"), "n", 2, 4)
e = gather(e, e, "n")
output("o" .. i, x) x = x * shift(x, "n", 1)
EOF
exit $bad
