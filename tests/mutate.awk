# mutate.awk: one small mistake at a random line of some files, for tests/mutate.
#
#     awk -v seed=7 -f tests/mutate.awk FILE ...
#
# prints the file, the line's number, the line, the line with the mistake, and
# what was done, a tab between them. The same seed and files give the same. Texts
# of kernels are code too; other strings, comments and messages are not.

function random(n)                       # 0 .. n - 1 (Park and Miller 1988)
{
    state = state * 16807 % 2147483647
    return int(state / 2147483647 * n)
}

# ---- which characters are code ----------------------------------------------------
# The line with a blank for each character that is none.

function code_of(s, texts, lua,    i, c, two, out, quote)
{
    out = ""
    for (i = 1; i <= length(s); i++) {
        c = substr(s, i, 1)
        two = substr(s, i, 2)
        if (comment) {
            if (two == "*/") {
                comment = 0
                i++
                out = out " "
            }
            out = out " "
        } else if (quote != "") {
            out = out (texts && c != "%" && c != "\\" ? c : " ")
            if (c == "\\") {
                i++
                out = out " "
            } else if (c == quote)
                quote = ""
        } else if (two == "/*" && !lua) {
            comment = 1
            out = out " "
        } else if (lua && two == "--") {
            while (i++ <= length(s))
                out = out " "
        } else {
            if (c == "\"" || c == "'")
                quote = c
            out = out c
        }
    }
    return out
}

# ---- what can be done to a line ------------------------------------------------------

function offer(text, what)
{
    made[++count] = text
    done[count] = what
}

function swap_words(s, code, from, to,    at, rest)
{
    for (at = 1; (rest = index(substr(code, at), from)) > 0; at += length(from)) {
        at += rest - 1
        offer(substr(s, 1, at - 1) to substr(s, at + length(from)),
              from " to " to)
    }
}

# Numbers of their own, one more or one less.
function change_numbers(s, code,    at, before, after, v)
{
    at = 1
    while (match(substr(code, at), /[0-9]+/)) {
        at += RSTART - 1
        before = substr(code, at - 1, 1)
        after = substr(code, at + RLENGTH, 1)
        v = substr(code, at, RLENGTH)
        if (at > 1 && before !~ /[A-Za-z0-9_.]/ && after !~ /[A-Za-z0-9_.]/)
            offer(substr(s, 1, at - 1) (v == 0 || random(2) ? v + 1 : v - 1)  \
                  substr(s, at + RLENGTH), "another number than " v)
        at += RLENGTH
    }
}

function balanced(code,    i, depth, c)
{
    for (i = 1; i <= length(code); i++) {
        c = substr(code, i, 1)
        depth += (c == "(") - (c == ")")
        if (depth < 0)
            return 0
    }
    return depth == 0
}

function ends_whole(before)
{
    return before ~ /[;{}:)]$/ || before ~ /else$/ || before == ""
}

function delete_statement(s, code, before,    indent)
{
    if (code !~ /^ +[a-z_*(][^ ]*( [-+*\/|&]?= |\(|->|\[|\+\+|--)/ ||
        code !~ /;$/ || !balanced(code) || !ends_whole(before) ||
        code ~ /^ +(return|for|while|if|else|case|const|static|int|double|char)/)
        return
    match(s, /^ +/)
    indent = substr(s, 1, RLENGTH)
    offer(indent "(void)0;", "statement left out")
}

function negate_condition(s, code,    at, cond)
{
    if (code !~ /^ +(\} else )?if \(.*\)( \{)?$/ || !balanced(code))
        return
    at = index(code, "if (") + 3
    match(code, /\)( \{)?$/)
    cond = substr(s, at, RSTART - at + 1)
    offer(substr(s, 1, at - 1) "(!" cond ")" substr(s, RSTART + 1),
          "condition negated")
}

function swap_arguments(s, code,    text, a, b)
{
    if (!match(code, /\([a-z][A-Za-z0-9_]*, [a-z][A-Za-z0-9_]*\)/))
        return
    text = substr(s, RSTART + 1, RLENGTH - 2)
    a = text
    b = text
    sub(/,.*/, "", a)
    sub(/.*, /, "", b)
    offer(substr(s, 1, RSTART) b ", " a substr(s, RSTART + RLENGTH - 1),
          "arguments swapped")
}

function offers(s, code, before, lua,    i, n, pair)
{
    count = 0
    n = split(lua ? luawords : words, pair, ";")
    for (i = 1; i + 1 <= n; i += 2)
        swap_words(s, code, pair[i], pair[i + 1])
    change_numbers(s, code)
    if (lua)
        return
    delete_statement(s, code, before)
    negate_condition(s, code)
    swap_arguments(s, code)
}

# ---- lines --------------------------------------------------------------------------

function is_message(s)
{
    return s ~ /(^|[^a-z_])(err|die|note|why|warn|assert|set_label)\(/ ||
           s ~ /_Static_assert|clang-format|^#/
}

BEGIN {
    words = " + ; - ; - ; + ; * ; / ; / ; * ; < ; <= ; <= ; < ; > ; >= ;"     \
            " >= ; > ; == ; != ; != ; == ; && ; || ; || ; && ; += ; -= ;"     \
            " -= ; += ;++;--; ? ; && 0 ? ;if (!;if (; % ; / ; | ; & "
    luawords = " + ; - ; - ; + ; * ; / ; / ; * ; < ; <= ; > ; >= ; == ; ~= ;" \
               " and ; or ; or ; and "
    state = (seed * 7919 + 12345) % 2147483646 + 1
    for (i = 0; i < 10; i++)
        random(2)
}
FNR == 1 {
    comment = 0
    texts = FILENAME ~ /^codegen\// || FILENAME ~ /\.def$/
    lua = FILENAME ~ /\.lua$/
    last = ""
}
{
    code = code_of($0, texts, lua)
    trimmed = code
    sub(/ +$/, "", trimmed)
    if (trimmed != "" && !is_message($0) &&
        (FILENAME !~ /\.def$/ || $0 ~ /^OP\(/)) {
        line[++lines] = $0
        codes[lines] = trimmed
        befores[lines] = last
        file[lines] = FILENAME
        number[lines] = FNR
    }
    last = trimmed
}
END {
    do {
        k = random(lines) + 1
        offers(line[k], codes[k], befores[k], file[k] ~ /\.lua$/)
    } while (!count)
    i = random(count) + 1
    printf "%s\t%d\t%s\t%s\t%s\n", file[k], number[k], line[k], made[i], done[i]
}
