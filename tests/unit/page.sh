#!/bin/sh
# page: what the pages of `show --html` and `watch` show, in a headless Chromium
# (Debian: chromium-headless-shell), at the width of a phone: what `show` prints,
# every section, keys, no error, nothing wider than the window. Without one only
# their sizes and data are looked at, and the rest is skipped.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$PWD/build/tests/page
rm -rf "$dir" && mkdir -p "$dir" || exit 2
echo 1..26
. tests/expect

browser=
for name in chromium-headless-shell chromium google-chrome; do
    [ -n "$browser" ] || browser=$(command -v $name)
done

# What a test of a page does when it is drawn, and where it says what came out.
cat >"$dir/script" <<'END'
<script>
addEventListener("error", e => document.body.append("BROKEN " + e.message));
addEventListener("DOMContentLoaded", () => setTimeout(() => {
    const time = document.querySelector("canvas[tabindex]"), press = key => time.dispatchEvent(new KeyboardEvent("keydown", { key }));
    if (time) { press("ArrowRight"); press("ArrowRight"); press("+"); press("Enter"); }
    document.body.append(" WIDE " + document.documentElement.scrollWidth + " OF " + innerWidth + " ");
}));
</script>
END

# shown PAGE: its text as it is drawn, a line an element, is what the last
# command printed
shown() {
    if [ -z "$browser" ]; then : >"$dir/log"; return; fi
    cat "$dir/script" "$dir/$1" >"$dir/tested.html"
    "$browser" --headless --no-sandbox --disable-gpu --virtual-time-budget=2000 --window-size=400,800 \
        --dump-dom "file://$dir/tested.html" 2>/dev/null |
        sed '/<script/,/<\/script>/d; /<style/,/<\/style>/d' | sed 's/></>\n</g' | sed 's/<[^>]*>//g' >"$dir/log"
}

# drawn NAME TEXT: as says, where there is a browser
drawn() {
    if [ -n "$browser" ]; then says "$@"; return; fi
    n=$((n + 1))
    echo "ok - page: $1 # SKIP no Chromium here (Debian: chromium-headless-shell)"
}

model="models/tiny.lua axes.batch=2 axes.seq=16 train.batch=8"
# shellcheck disable=SC2086
"$PLEAT" compile $model world=4 fold.pp=2 fold.ep=2 memory=1GiB -o "$dir/a.plan" >/dev/null &&
    "$PLEAT" compile $model -o "$dir/b.plan" >/dev/null &&
    "$PLEAT" run $model train.steps=3 train.trace=3 train.sample_every=3 train.sample_tokens=8 train.sample_prompt='Per <b>' data.train=LICENSE data.valid=tail:0.1 train.eval_every=2 \
        name="$dir/run" >/dev/null || exit 2
step=$("$PLEAT" show "$dir/a.plan" | sed -n 's/^program step.*predicted \([0-9.]*\) ms.*/\1/p' | head -n 1)
peak=$("$PLEAT" show "$dir/a.plan" | awk '/^memory of a rank/ && $5 > most { most = $5 } END { print most }')

is "two plans as a page" 0 "$PLEAT" show "$dir/a.plan" "$dir/b.plan" --html "$dir/two.html"
[ "$(wc -c <"$dir/two.html")" -lt 400000 ]
ended "it is small" $? "$(wc -c <"$dir/two.html") bytes"
! grep -q "$dir\|\"name\":\"/" "$dir/two.html"
ended "it names no absolute path" $? "$(grep -o '"name":"[^"]*"' "$dir/two.html" | head -n 1)"
grep -q '"work":\[[^]]*,[0-9.e-]*[1-9][0-9.e-]*,[0-9.e-]*[1-9][0-9.e-]*\]' "$dir/two.html"
ended "attention and grouped products are classes" $? "$(grep -o '"work":[^]]*' "$dir/two.html" | head -n 1)"
shown two.html
drawn "the step's time" "takes $step ms on 4 ranks (host)"
drawn "the peak of its largest stage" "A rank needs $peak MiB, which fits into 1.00 GiB"
for section in "Side by side" "Time line" "Alive then" "Expert fold" "Decisions" "The model, with what it costs"; do
    drawn "the section '$section'" "$section"
done
drawn "keys move in the time line, and open a run of a phase" "One run of F0, stage 0: compute"
[ -z "$browser" ] || { [ $(sed -n 's/.* WIDE \([0-9]*\) OF \([0-9]*\) .*/\1 -le \2/p' "$dir/log") ] && ! grep BROKEN "$dir/log"; }
ended "nothing is wider than the window, nothing broke" $? "$(grep -o 'WIDE [0-9]* OF [0-9]*\|BROKEN.*' "$dir/log")"

# The trace of a pipeline: both stages, and its end is that of the step.
is "a trace" 0 "$PLEAT" show "$dir/a.plan" --trace "$dir/a.json"
sed -n 's/.*"pid":\([0-9]*\),"tid":[0-9]*,"ts":\([0-9.]*\),"dur":\([0-9.]*\),.*/\2 \3 \1/p' "$dir/a.json" |
    awk -v step="$step" '$1 + $2 > end { end = $1 + $2 } $3 == 1 { both = 1 } END { exit !(both && end > 999 * step && end < 1001 * step) }'
ended "it ends with the step" $? "$step ms"

# Bytes taken at most in the first stage's events; addresses that overlap.
is "a snapshot of memory" 0 "$PLEAT" show "$dir/a.plan" --snapshot "$dir/a.pickle"
if command -v python3 >/dev/null; then
    python3 - "$dir/a.pickle" >"$dir/log" 2>&1 <<'END'
import pickle, sys
snapshot, live, most = pickle.load(open(sys.argv[1], "rb")), {}, 0
segment = snapshot["segments"][0]
for e in snapshot["device_traces"][0]:
    if e["action"] == "alloc":
        for at, size in live.items():
            if at < e["addr"] + e["size"] and e["addr"] < at + size:
                print("overlap", e)
        live[e["addr"]] = e["size"]
    elif e["action"] == "free_completed":
        del live[e["addr"]]
    most = max(most, sum(live.values()))
print("within 0.1 %:", segment["total_size"] * 0.999 < most <= segment["total_size"])
print("ends whole:", sum(b["size"] for b in segment["blocks"]) == segment["total_size"], sorted(live) == sorted(
    segment["address"] + sum(b["size"] for b in segment["blocks"][:i])
    for i, b in enumerate(segment["blocks"]) if b["state"] == "active_allocated"))
END
    says "its events take the arena" "within 0.1 %: True"
    says "and leave what lives always" "ends whole: True True"
    ! grep -q overlap "$dir/log"
    ended "no two overlap" $? "overlap"
else
    for name in "its events take the arena" "and leave what lives always" "no two overlap"; do
        n=$((n + 1))
        echo "ok - page: $name # SKIP no Python here"
    done
fi

is "a run as a page" 0 "$PLEAT" show "$dir/run" --html "$dir/run.html"
shown run.html
drawn "measured beside predicted" "3 steps took "
is "watch" 0 "$PLEAT" watch "$dir/run"
shown run/watch.html
last=$(sed -n 's/.*"step": 3, "loss": \([0-9.]*\),.*/\1/p' "$dir/run/metrics.jsonl" | awk '{ printf "%.4f", $1 }')
drawn "the last loss" "Step 3 of 3: loss $last, validation "
drawn "a sample, as text" "Per &lt;b&gt;"
is "watch of what is no run" 1 "$PLEAT" watch "$dir"
exit $bad
