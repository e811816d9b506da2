-- seed 70475: keys and values of an attention are alike, so its weights have no
-- gradient but for rounding, of sums of result times gradient
axes { batch={ 7, }, seq=3, h=3, k=3, e=6, f=3, p=3, q=2, v=1, m=1, n=1, mn=1, bucket3=4 }
local t11 = minimum(param("x69", "p k h", 1), 0.011)
local t23 = rename(attention(dot(param("x56", "p k e", 1), rename(dot(t11, param("w5", "h e", 0.5), "h"), {k="key1"}), "e"), rename(t11 * 0.3, {k="key1"}), "key1"), {h="key2"})
local t27 = attention(eq(iota("h"), param("x33", "key2", normal(1))), t23, "key2")
local t28 = rename(t27, {h="key4"})
loss("l0", balance_loss(softmax(maximum(t28, softmax(causal(dot(t27, t28, "k"), "h", "key4"), "key4") + 0.011), "h"), 1, "h", "k key4 p"), 2)
