#!/bin/sh
# save.sh DIR MODEL [key=value ...]: for how long a save stops training, beside
# training and waiting. The run, with its checkpoints, is made in DIR and removed.
# RANKS=n runs it under mpirun. STEPS (12) and EVERY (4): of each run; so many
# that a save is on the disk before the next begins, which else waits for it. Needs
# build/pleat; on a machine with GPUs it takes them (target=host keeps it off).
#
#   bytes     of a checkpoint; snapshot: what rank 0 copies of it
#   link      of rank 0 to the host's memory: the fastest snapshot, on a GPU that of
#             the end, beside which nothing runs
#   step      median of steps without a save; of it forward and backward, from a
#             step's trace
#   stop      what training waits in a save, and by how much the step behind it
#             is longer than the median; median and largest of all saves
#   allowed   max(0, 1.15 x snapshot / link - forward and backward) + 20 ms; the
#             exit status is 1 where the largest stop beside training is longer
cd "$(dirname "$0")/../.." || exit 2
[ $# -ge 2 ] || { sed -n '2,17s/^# *//p' tests/bench/save.sh; exit 2; }
case ${PLEAT:=build/pleat} in /*) ;; *) PLEAT=$PWD/$PLEAT ;; esac
dir=$1 model=$2 steps=${STEPS:-12} every=${EVERY:-4}
shift 2
mpi=
[ "${RANKS:-1}" = 1 ] || mpi="mpirun -n $RANKS"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# one NAME key=value ...: a run, to DIR/NAME; one step more than saves divide, so
# that the last save is one with nothing beside it
one() {
    name=$1
    shift
    rm -rf "${dir:?}/$name"
    $mpi "$PLEAT" run "$model" "$@" name="$dir/$name" train.steps=$((steps + 1)) \
        train.save_every="$every" train.keep=1 train.log_every=1000 data.valid= \
        >"$dir/$name.log" 2>&1 || { tail -n 5 "$dir/$name.log"; exit 1; }
    rm -rf "${dir:?}/$name/ckpt"
}

# milliseconds of a step before its last row: forward and backward
before_post() {
    awk -F'"ts": ' '/"tid": 0/ { split($2, v, ","); if (!n++) first = v[1]
        if (/"name": "post/ && !post) post = v[1] }
        END { print (post - first) / 1000 }' "$dir/$1/trace.0.json"
}

# figures NAME: medians and largest of what metrics.jsonl says, the first step
# and the first save left out, which warm up
figures() {
    awk -v fb="$2" '
        function field(name) {
            if (!match($0, "\"" name "\": [-0-9.e+]+")) return ""
            return substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 4) + 0
        }
        function median(v, n,  i, j, t) {
            for (i = 2; i <= n; i++)
                for (j = i; j > 1 && v[j - 1] > v[j]; j--) {
                    t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
            return n ? v[int((n + 1) / 2)] : 0
        }
        /"loss"/ { ms[field("step")] = field("step_ms"); last = field("step") }
        /"save_ms"/ { s = field("step"); stop[s] = field("save_stopped_ms")
            if (!first) first = s
            whole[s] = field("save_ms"); bytes = field("saved_bytes")
            now = field("snapshot_bytes"); part = now ? now : part
            if (now && now / field("save_copy_ms") / 1e6 > link)
                link = now / field("save_copy_ms") / 1e6 }
        END {
            for (s = 3; s <= last; s++) if (!((s - 1) in stop)) plain[++n] = ms[s]
            step = median(plain, n)
            for (s in stop) if (s < last && s != first) {
                more = ms[s + 1] - step
                t = stop[s] + (more > 0 ? more : 0)
                w[++k] = t; full[k] = whole[s]; most = t > most ? t : most }
            allowed = link ? 1.15 * part / link / 1e6 - fb : 0
            printf "bytes %.3f GB  snapshot %.3f GB  link %.2f GB/s  step %.1f ms", \
                bytes / 1e9, part / 1e9, link, step
            printf "  forward and backward %.1f ms\n  stop %.1f ms (most %.1f)", \
                fb, median(w, k), most
            allowed = (allowed > 0 ? allowed : 0) + 20
            if (link) printf "  allowed %.1f ms%s", allowed, (most > allowed ? ": TOO LONG" : "")
            printf "  a save takes %.1f ms\n", median(full, k)
            exit (link && most > allowed)
        }' "$dir/$1/metrics.jsonl"
}

mkdir -p "$dir" || exit 1
all="$steps $every"
steps=3 every=0
one traced "$@" train.trace=3
steps=${all% *} every=${all#* }
fb=$(before_post traced)
one beside "$@"
grep -h "^checkpoints:" "$dir/beside.log"
echo "beside training:"
figures beside "$fb"
status=$?
one waiting "$@" train.snapshot=0
echo "waiting:" && figures waiting "$fb"
rm -rf "$dir/traced" "$dir/beside" "$dir/waiting" "$dir"/*.log
exit $status
