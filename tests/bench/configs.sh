#!/bin/sh
# configs: step times that others measured, and what target=null predicts for the
# same fold of the same model: how well folds are ranked (Spearman), and how far
# predictions are off. Of MoE rows the prediction is the plan's own; what software of
# the dense rows does and a plan does not stands at gpt(), with numbers that are read
# off its text where they can be. Numbers that are fitted, each the same for all rows
# of its sets:
#
#   network  5e10 bytes/s   an h100's to other hosts: to table 3 of arXiv 2504.14960
#   link     3.3e11 bytes/s its NVLink: to that table (NCCL's all-to-all of 470 MB on
#                           8 of them, arXiv 2603.07685: 3.25e11)
#   eos.machine             below: products and attention, FLOP/s, memory and copies of
#                           a dispatcher (dispatch), bytes/s, a collective (hop, far),
#                           s: to table 3
#   gemm     2.14e14 FLOP/s an a100's products: machines.def, to rows of megatron-sc21
#                           up to 76B; those of 145B and more are held out
#   host     2.95e-3 s      a layer and micro-batch take no less on the host of
#                           vTrain's rows,
#   alone    8.5e-4 s       and so much more where softmax is not fused,
#   sockets  6.5e-4 s       and where 8 ranks of tp, on both sockets, wait for each other,
#   gap      8.5e-4 s       on its GPUs its small kernels, beside what a plan has,
#   switch   2e-4 s         its four all-reduces, each of which changes streams twice,
#   share    0.2            of the shorter of host and GPUs that the longer does not
#                           hide: some kernels wait for the one, some for the other:
#                           these six to rows of vtrain-single with 12, 16 and 20 layers,
#                           none of which stands below
#
# CONFIGS=published_configs.csv: all rows of vtrain-single in that file, too, 116 groups of
# the same model, GPUs and batch (ten minutes)
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT

# model FILE LAYERS: a copy with so many layers
model() {
    sed "s/^local layers, \(.*\) = [0-9]*,/local layers, \1 = $2,/" "models/$1.lua" >"$dir/$1.lua"
}

# summary NAME FILE: of lines "measured predicted group"
summary() {
    awk -v name="$1" '
        function rank(v, r, n,   i, j) {
            for (i = 1; i <= n; i++) {
                r[i] = 0.5
                for (j = 1; j <= n; j++) r[i] += v[j] < v[i] ? 1 : v[j] == v[i] ? 0.5 : 0
            }
        }
        { m[++n] = $1; p[n] = $2; e[n] = $2 > $1 ? $2 / $1 - 1 : 1 - $2 / $1; mean += e[n]
            if (!($3 in low) || $2 < p[low[$3]]) low[$3] = n
            if (!($3 in best) || $1 < m[best[$3]]) best[$3] = n }
        END {
            rank(m, a, n); rank(p, b, n)
            for (i = 1; i <= n; i++) d += (a[i] - b[i]) ^ 2
            for (i = 1; i <= n; i++) for (j = 1; j < i; j++)
                if (e[j] > e[i]) { t = e[i]; e[i] = e[j]; e[j] = t }
            for (g in low) if (m[low[g]] / m[best[g]] > worst) { worst = m[low[g]] / m[best[g]]; at = g }
            printf "  %s: %d rows, rank correlation %.2f, off by %.1f %% in the mean, %.1f %% median; ", name, n,
                1 - 6 * d / (n * (n * n - 1)), 100 * mean / n, 100 * e[int((n + 1) / 2)]
            printf "chosen first takes at most %.2f of the best of its group (%s)\n", worst, at
        }' "$2"
}

# MoE on H100s, arXiv 2504.14960, tables 3 and 4 (gbs 1024), 5 (longer): MFU of
# 989.5 TFLOP/s, ranks, sequences of a step, their tokens, tp cp pp ep zero. Not
# published, so assumed: a pipeline has chunks of one layer. Experts are cut over
# tp ranks too (etp = tp), ep's lie beyond those of tp and cp. The machine is an h100
# whose dispatcher (section 3.3) sends a row for each choice of a token
# (cluster.dispatch).
cat >"$dir/eos.machine" <<END
chip h100
gemm 7.4e14 fitted
attn 7.4e14 fitted
attn_bwd 5.8e14 fitted
memory 2.8e12 fitted
dispatch 1.8e12 fitted
hop 2.5e-5 fitted
far 1e-5 fitted
END
moe() { # name file layers keys..
    name=$1 file=$2 layers=$3 && shift 3
    : >"$dir/moe"
    while read -r mfu world gbs seq tp cp pp ep zero; do
        chunks=
        [ "$pp" = 1 ] || chunks="fold.vpp=$((layers / pp)) fold.schedule=interleaved"
        key="$name x$world gbs=$gbs seq=$seq tp=$tp cp=$cp pp=$pp ep=$ep zero=$zero"
        # shellcheck disable=SC2086
        "$PLEAT" compile "$dir/$file.lua" target=null memory=9999GiB -o "$dir/p.plan" cluster="$dir/eos.machine" \
            cluster.ranks="$world" fold.tp="$tp" fold.cp="$cp" fold.pp="$pp" fold.ep="$ep" \
            fold.etp="$tp" $chunks fold.zero="$zero" axes.seq="$seq" train.batch="$gbs" train.recompute=0 \
            route.policy=capacity route.factor=1 "$@" >"$dir/log" 2>&1 || { echo "  $key: $(head -n 1 "$dir/log")"; continue; }
        f=$(flops "$file" axes.seq="$seq" "$@")
        "$PLEAT" show "$dir/p.plan" | awk -v mfu="$mfu" -v world="$world" -v f="$f" -v gbs="$gbs" -v seq="$seq" -v key="$key" \
            -v group="$name,x$world,gbs=$gbs,seq=$seq" '
            $1 == "program" && !n++ { for (i = 3; i < NF; i++) if ($i == "predicted") t = $(i + 1) / 1e3 }
            END {
                m = f * gbs * seq / (world * 989.5e12 * mfu / 100)
                printf "  %-64s measured %6.2f s, predicted %6.2f\n", key, m, t
                print m, t, group >"'"$dir/row"'" }'
        cat "$dir/row" >>"$dir/moe"
        case $gbs in 256) cat "$dir/row" >>"$dir/fitted" ;; *) cat "$dir/row" >>"$dir/unseen" ;; esac
    done
    summary "$name" "$dir/moe"
}

# flops FILE KEYS..: of a token
flops() {
    file=$1 && shift
    "$PLEAT" check "$dir/$file.lua" "$@" | sed -n 's/^FLOPs per token *//p' | tr -d ,
}

: >"$dir/fitted"
: >"$dir/unseen"
model mixtral 56
big="axes.hidden=6144 axes.group=6 axes.ffn=16384 axes.vocab=32768"
# shellcheck disable=SC2086
moe Mixtral-8x22B mixtral 56 $big <<END
4.3 128 256 4096 8 1 1 1 3
23.4 128 256 4096 2 1 1 8 3
36.6 128 256 4096 4 1 1 8 1
46.3 128 256 4096 2 1 8 4 1
49.4 128 1024 4096 2 1 8 4 1
48.0 256 1024 4096 2 1 8 4 1
23.9 128 1024 4096 2 1 1 8 3
25.5 256 1024 4096 2 1 1 8 3
40.4 128 1024 4096 4 1 1 8 1
39.1 256 1024 4096 4 1 1 8 1
45.3 128 1024 16384 2 4 8 4 1
43.2 256 512 32768 2 8 8 4 1
END
model mixtral 80
mv "$dir/mixtral.lua" "$dir/llama.lua"
# shellcheck disable=SC2086
moe Llama3-8x70B llama 80 axes.hidden=8192 axes.group=8 axes.ffn=28672 axes.vocab=128256 <<END
19.6 256 256 4096 8 1 1 8 3
38.8 256 256 4096 8 1 8 4 1
40.1 256 1024 4096 8 1 8 4 1
END
model mixtral 56
fine="$big axes.expert=64 axes.ffn=2048"
sed -i 's/^local chosen, theta, scaling, window = 2,/local chosen, theta, scaling, window = 8,/' "$dir/mixtral.lua"
# shellcheck disable=SC2086
moe Mixtral-8x22B-G8T8 mixtral 56 $fine <<END
2.2 128 256 4096 8 1 1 1 3
9.0 128 256 4096 4 1 1 8 3
8.7 128 256 4096 8 1 1 8 1
17.1 128 256 4096 2 1 8 8 1
19.8 128 1024 4096 2 1 8 8 1
18.4 256 1024 4096 2 1 8 8 1
9.0 128 1024 4096 4 1 1 8 3
8.5 256 1024 4096 4 1 1 8 3
8.6 128 1024 4096 8 1 1 8 1
8.5 256 1024 4096 8 1 1 8 1
END
model qwen2_moe 28
moe Qwen2-57B-A14B qwen2_moe 28 <<END
9.9 64 256 4096 2 1 1 1 3
25.4 64 256 4096 1 1 1 8 3
23.1 64 256 4096 4 1 1 4 1
35.3 64 256 4096 2 1 4 4 1
36.2 64 1024 4096 2 1 4 4 1
36.0 128 1024 4096 2 1 4 4 1
34.8 256 1024 4096 2 1 4 4 1
26.3 64 1024 4096 1 1 1 8 3
25.6 128 1024 4096 1 1 1 8 3
23.4 256 1024 4096 1 1 1 8 3
22.4 64 1024 4096 4 1 1 4 1
20.9 128 1024 4096 4 1 1 4 1
19.8 256 1024 4096 4 1 1 4 1
END
summary "folded MoE, table 3, to which eos.machine is fitted" "$dir/fitted"
summary "folded MoE, tables 4 and 5, held out" "$dir/unseen"

# Dense, on A100s: gpt.lua, as Megatron ran it, whose collectives nothing hides, and
# which recomputes nothing, core attention (selective), or all of a layer (full): a
# forward again for each micro-batch, collectives too, where a plan keeps what came from
# others. All data parallel ranks hold all weights: gradients of 16 bits go in one
# all-reduce, and the update moves `moved` bytes of each (Megatron's, kernel by kernel: 6
# to widen its gradient, 8 to scale, 4 to measure and 8 to clip it, 30 of Adam, 6 to round
# the weight; DeepSpeed's: 28), in the place of what a plan does behind the last
# micro-batch. Of vTrain's rows, which Megatron-DeepSpeed ran:
#
#   - A host launches each kernel: the head and each layer of a micro-batch take no less
#     than `host`; where a rank has no multiple of 4 rows of heads, softmax is several
#     kernels. On GPUs norms, biases, dropouts and sums of gradients are kernels of their
#     own (`gap`), and all-reduces of tp run on a stream of their own (`switch`).
#   - Its hosts have 800 Gbit/s. Those of Selene have 1,600, and tuned software.
#   - On one host nothing was recomputed (`as`). Its simulator does not either where there is
#     one stage (src/predictor.py), though its configs say full, and of GPT h=2048 a layer
#     of 8,192 tokens takes 16.3 ms: with a second forward products would run at more
#     than 300 TFLOP/s beside what memory takes.
#   - Its models have 50,257 words, 50257 // tp on a rank (src/config.py): rows of logits
#     are aligned for tensor cores where tp=2, and with tp=1 a head of h=2048 takes five
#     times as long (70 ms of 8,192 tokens, 16 with tp=2). Stages have equal layers.
host=0 alone=0 sockets=0 gap=0 switch=0 share=0 moved=62 words=51200 network=2e10 equal='' as=''
gpt() { # name world gbs seq hidden layers heads vpp: rows of seconds mbs tp pp recompute
    name=$1 world=$2 gbs=$3 seq=$4 hidden=$5 layers=$6 heads=$7 vpp=$8
    sed "s/odds = 48/odds = $layers/; s/heads={ 64/heads={ $heads/" tests/bench/gpt.lua >"$dir/gpt.lua"
    while read -r s mbs tp pp again; do
        again=${as:-$again} cuts=
        [ "$vpp" = 1 ] || [ "$pp" = 1 ] || cuts="fold.vpp=$vpp fold.schedule=interleaved"
        [ -z "$equal" ] || [ "$pp" = 1 ] || cuts=fold.layout=$(awk -v n="$pp" -v t="t*$((layers / pp))" 'BEGIN {
            for (i = 1; i <= n; i++) printf "%s%s%s", (i > 1 ? "|" : "E"), t, (i == n ? "L" : "") }')
        # shellcheck disable=SC2086
        "$PLEAT" compile "$dir/gpt.lua" target=null memory=9999GiB -o "$dir/p.plan" cluster=a100x"$world" \
            cluster.network=$network fold.tp="$tp" fold.pp="$pp" $cuts fold.zero=0 fold.overlap=0 axes.batch="$mbs" \
            axes.seq="$seq" axes.hidden="$hidden" axes.dim=$((hidden / heads)) axes.ffn=$((4 * hidden)) \
            axes.vocab=$((words / tp * tp)) train.batch="$gbs" \
            train.recompute="$([ "$again" = selective ] && echo core_attn || echo 0)" >"$dir/log" 2>&1 ||
            { echo "  $name tp=$tp pp=$pp mbs=$mbs: $(head -n 1 "$dir/log")"; continue; }
        "$PLEAT" show "$dir/p.plan" | awk -v s="$s" -v again="$again" -v world="$world" -v gbs="$gbs" -v mbs="$mbs" \
            -v seq="$seq" -v hidden="$hidden" -v layers="$layers" -v heads="$heads" -v words="$words" -v tp="$tp" \
            -v pp="$pp" -v host="$host" -v alone="$alone" -v sockets="$sockets" -v gap="$gap" \
            -v switched="$switch" -v share="$share" -v moved="$moved" -v network="$network" -v group="$name,x$world,gbs=$gbs,$hidden,$layers" '
            $1 == "program" { p = $2; for (i = 3; i < NF; i++) if ($i == "predicted") t[p] = $(i + 1) / 1e3 }
            p == "step" && $1 == "post" && $(NF - 2) / 1e3 > post { post = $(NF - 2) / 1e3 }
            END {
                dp = world / tp / pp; each = gbs / dp / mbs; slots = (each + pp - 1) * layers / pp
                times = again == "full" ? 4 / 3 : 1
                x = t["step"] - post + (again == "full" ? t["eval"] : 0) + slots * (gap + (tp > 1 ? switched : 0)) * times
                least = (slots + each) * (host + (heads / tp * mbs % 4 ? alone : 0) + (tp == 8 ? sockets : 0)) * times
                params = (12 * hidden * hidden * layers / pp + (words + seq) * hidden) / tp
                here = tp < 8 ? 8 / tp : 1
                out = dp > here ? 1 / here : 0
                once = params * moved / 1.7e12 + 2 * (dp - 1) / dp * 2 * params * (out / network + (1 - out) / 2.3e11)
                print s, (x > least ? x + share * least : least + share * x) + once, group }' >>"$dir/dense"
    done
}
dense() { # name: what gpt found since the last
    summary "dense, $1" "$dir/dense"
    : >"$dir/dense"
}
: >"$dir/dense"
# Korthikanti et al., arXiv 2205.05198, table 5
gpt korthikanti 8 4 2048 6144 48 64 1 <<END
1.42 4 8 1 full
1.1 4 8 1 selective
END
gpt korthikanti 64 64 2048 12288 96 96 3 <<END
18.13 1 8 8 full
13.75 1 8 8 selective
END
dense "korthikanti, 8 and 64 A100"
# Narayanan et al., arXiv 2104.04473, table 1, folds of Megatron's examples/sc21; seconds of
# the FLOPs that its equation 3 counts at the TFLOP/s of a GPU there
sc21() { # TFLOP/s world gbs hidden layers heads vpp mbs tp pp
    seconds=$(awk -v tf="$1" -v w="$2" -v b="$3" -v h="$4" -v l="$5" 'BEGIN {
        print 96 * b * 2048 * l * h * h * (1 + 2048 / (6 * h) + 51200 / (16 * l * h)) / (tf * 1e12 * w) }')
    echo "$seconds $8 $9 ${10} full" >"$dir/sc21"
    gpt sc21 "$2" "$3" 2048 "$4" "$5" "$6" "$7" <"$dir/sc21"
}
sc21 137 32 512 2304 24 24 1 16 1 1
sc21 138 64 512 3072 30 32 1 16 2 1
sc21 142 128 512 4096 36 32 1 16 4 1
sc21 135 256 1024 6144 40 48 1 8 8 1
sc21 138 512 1536 8192 48 64 1 4 8 2
sc21 140 1024 1792 10240 60 80 3 2 8 4
dense "megatron-sc21, 1.7B to 76B, to which an a100's gemm is fitted"
sc21 148 1536 2304 12288 80 96 2 2 8 8
sc21 155 1920 2160 16384 96 128 2 1 8 16
sc21 163 2520 2520 20480 105 128 3 1 8 35
sc21 163 3072 3072 25600 128 160 1 1 8 64
dense "megatron-sc21, 145B to 1T, held out"
# vTrain, arXiv 2312.12391
network=1e10 moved=28
gpt vtrain-multi 256 1024 2048 6144 40 48 1 <<END
9.6036 8 8 1 full
10.5066 16 8 1 full
9.9276 4 8 1 full
10.4533 2 8 1 full
10.8563 8 4 2 full
10.9504 4 4 2 full
10.0316 2 4 2 full
10.825 4 2 4 full
12.379 4 1 8 full
10.4348 2 8 2 full
10.9264 2 8 4 full
11.0261 8 8 8 full
13.1575 8 2 8 full
20.4148 2 16 1 full
16.2414 32 8 8 full
END
gpt vtrain-multi 512 1536 2048 8192 48 64 1 <<END
21.8904 2 2 8 full
13.8755 2 4 4 full
23.7479 2 2 16 full
16.1855 3 4 4 full
15.6256 4 4 4 full
16.0706 2 4 8 full
19.0672 3 2 8 full
17.6061 3 4 8 full
14.5296 2 4 16 full
26.1888 3 2 16 full
17.4136 4 4 8 full
18.5321 6 4 4 full
14.9155 6 8 2 full
15.2128 8 8 2 full
14.7573 4 8 2 full
17.1268 12 8 2 full
14.8504 3 8 2 full
15.0239 3 4 16 full
14.614 2 8 2 full
15.5855 4 4 16 full
14.7134 2 8 4 full
16.087 6 4 8 full
14.8338 3 8 4 full
14.7507 4 8 4 full
15.2494 6 8 4 full
15.0019 2 8 8 full
15.8145 8 8 4 full
15.2707 3 8 8 full
14.9671 4 8 8 full
20.0441 6 4 16 full
15.7753 6 8 8 full
17.1824 12 8 4 full
19.991 3 1 16 full
15.6394 2 8 16 full
23.0629 6 2 8 full
16.3608 3 8 16 full
16.4134 8 8 8 full
15.9445 4 8 16 full
16.2328 6 8 16 full
27.2284 6 2 16 full
17.9995 12 8 8 full
20.6148 12 4 8 full
16.8771 8 8 16 full
18.5683 12 8 16 full
27.8103 12 4 16 full
23.1711 24 8 8 full
24.1699 24 8 16 full
END
dense "vtrain-multi, 256 and 512 A100"
host=2.95e-3 alone=8.5e-4 sockets=6.5e-4 gap=8.5e-4 switch=2e-4 share=0.2 words=50257 equal=1 as=none
gpt vtrain-single 8 16 1024 2048 24 16 1 <<END
0.310983 2 2 2 full
0.467602 4 8 1 full
0.333444 4 4 2 full
0.293094 2 4 1 full
0.229996 2 1 2 full
0.306245 4 2 4 full
1.883691 1 8 1 full
0.257465 1 1 2 full
0.312344 1 1 4 full
0.408275 1 2 2 full
0.452094 1 2 4 full
0.339361 2 4 2 full
0.325499 8 8 1 full
0.355045 2 2 4 full
0.611081 1 4 1 full
0.252687 2 2 1 full
0.354183 4 1 4 full
0.365103 8 2 4 full
0.264092 4 4 1 full
0.361925 1 2 1 full
0.21503 1 1 1 full
0.290195 2 1 4 full
0.298676 8 4 2 full
0.254325 4 2 2 full
0.775623 2 8 1 full
0.662629 1 4 2 full
END
dense "vtrain-single, 8 A100"
[ -n "$CONFIGS" ] || exit 0
awk -F, '$2 == "vtrain-single" { print $9, $12, $26, $25, $31, $13, $15, $17 }' "$CONFIGS" | sort >"$dir/all"
awk '{ print $1, $2, $3, $4 }' "$dir/all" | sort -u | while read -r world gbs hidden layers; do
    awk -v w="$world" -v b="$gbs" -v h="$hidden" -v l="$layers" '
        $1 == w && $2 == b && $3 == h && $4 == l { print $5, $6, $7, $8, "full" }' "$dir/all" >"$dir/rows"
    gpt vtrain-single "$world" "$gbs" 1024 "$hidden" "$layers" 16 1 <"$dir/rows"
done
dense "vtrain-single, all of $CONFIGS"
