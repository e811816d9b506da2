#!/bin/sh
# configs: step times that others measured, and what target=null predicts for the
# same fold of the same model: how well folds are ranked (Spearman), and how far
# predictions are off. Four numbers are fitted, two below, two to the first table: of an h100 in
# machines.def, bytes/s to other hosts (5e10) and of NVLink (3.3e11; NCCL's
# all-to-all of 470 MB on 8 H100, arXiv 2603.07685: 3.25e11). Those systems cut
# experts over tp ranks too (etp = tp). Not published, so assumed: a pipeline has
# chunks of one layer. What differs: other kernels and other overlap; they send a
# token once for each of its experts, a plan once for each rank of them; recompute
# is all or nothing; a gated ffn of 8/3 h stands for GPT's 4 h.
cd "$(dirname "$0")/../.." || exit 2
: "${PLEAT:=$PWD/build/pleat}"
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT

# model FILE LAYERS: a copy with so many layers
model() {
    sed "s/^local layers, \(.*\) = [0-9]*,/local layers, \1 = $2,/" "models/$1.lua" >"$dir/$1.lua"
}

# secs FILE KEYS..: predicted of a step
secs() {
    file=$1 && shift
    "$PLEAT" compile "$dir/$file.lua" target=null memory=9999GiB -o "$dir/p.plan" "$@" >"$dir/log" 2>&1
    sed -n 's/.*predicted \(.*\) ms a step/\1/p' "$dir/log" | awk '{ print $1 / 1e3 }'
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
# 989.5 TFLOP/s, ranks, sequences of a step, their tokens, tp cp pp ep zero
moe() {
    name=$1 file=$2 layers=$3 && shift 3
    : >"$dir/moe"
    while read -r mfu world gbs seq tp cp pp ep zero; do
        chunks=
        [ "$pp" = 1 ] || chunks="fold.vpp=$((layers / pp)) fold.schedule=interleaved"
        # shellcheck disable=SC2086
        t=$(secs "$file" cluster=h100x"$world" fold.tp="$tp" fold.cp="$cp" fold.pp="$pp" fold.ep="$ep" \
            fold.etp="$tp" $chunks fold.zero="$zero" axes.seq="$seq" train.batch="$gbs" train.recompute=0 \
            route.policy=capacity route.factor=1 "$@")
        key="$name x$world gbs=$gbs seq=$seq tp=$tp cp=$cp pp=$pp ep=$ep zero=$zero"
        [ -n "$t" ] || { echo "  $key: $(head -n 1 "$dir/log")"; continue; }
        f=$(flops "$file" axes.seq="$seq" "$@")
        awk -v t="$t" -v mfu="$mfu" -v w="$world" -v f="$f" -v n="$gbs" -v s="$seq" -v k="$key" 'BEGIN {
            m = f * n * s / (w * 989.5e12 * mfu / 100)
            printf "  %-64s measured %6.2f s, predicted %6.2f\n", k, m, t
            print m, t, "'"$name,x$world,gbs=$gbs,seq=$seq"'" >"'"$dir/row"'" }'
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
summary "folded MoE, table 3, to which two numbers are fitted" "$dir/fitted"
summary "folded MoE, tables 4 and 5" "$dir/unseen"

# Dense, on A100s: gpt.lua, as Megatron ran it, whose collectives nothing hides, whose
# weights all data parallel ranks hold, and which recomputes nothing, core attention
# (with selective), or all of a layer (full): a forward again for each micro-batch,
# collectives too, where a plan keeps what came from others. Its host launches each
# kernel: a step takes no less than that, `host` seconds for a layer of a micro-batch,
# and `once` seconds: fitted to 59 of the rows of vtrain-single that are not below. The
# third fitted number is gemm of an a100 in machines.def, to megatron-sc21-T1.
# What is known to be missing of vtrain-single: their gradients go in one all-reduce
# of 16 bits, a plan of zero=0 has one of 32 bits for each parameter (63 instead of
# 20 ms of 215 at dp=8: why that fold is not chosen first); with tp=8 and mbs=1 a layer
# takes 4.8 to 5.1 ms in models of any width (2 rows of heads, not 4: their softmax is
# then not fused); their stages have equal layers, and the last the head beside them.
host=3.5e-3 once=1e-2
gpt() { # name world gbs seq hidden layers heads vpp: rows of seconds mbs tp pp recompute
    name=$1 world=$2 gbs=$3 seq=$4 hidden=$5 layers=$6 heads=$7 vpp=$8
    sed "s/odds = 48/odds = $layers/; s/heads={ 64/heads={ $heads/" tests/bench/gpt.lua >"$dir/gpt.lua"
    while read -r s mbs tp pp again; do
        chunks=
        [ "$vpp" = 1 ] || [ "$pp" = 1 ] || chunks="fold.vpp=$vpp fold.schedule=interleaved"
        # shellcheck disable=SC2086
        "$PLEAT" compile "$dir/gpt.lua" target=null memory=9999GiB -o "$dir/p.plan" cluster=a100x"$world" \
            fold.tp="$tp" fold.pp="$pp" $chunks fold.zero=0 fold.overlap=0 axes.batch="$mbs" axes.seq="$seq" \
            axes.hidden="$hidden" axes.dim=$((hidden / heads)) axes.ffn=$((4 * hidden)) train.batch="$gbs" \
            train.recompute="$([ "$again" = full ] && echo 0 || echo core_attn)" >"$dir/log" 2>&1 ||
            { echo "  $name tp=$tp pp=$pp mbs=$mbs: $(head -n 1 "$dir/log")"; continue; }
        "$PLEAT" show "$dir/p.plan" | awk -v s="$s" -v again="$again" -v slots="$((gbs * tp * pp / world / mbs + pp - 1))" \
            -v layers="$layers" -v pp="$pp" -v host="$host" -v once="$once" -v group="$name,x$world,gbs=$gbs,$hidden,$layers" '
            $1 == "program" { for (i = 3; i < NF; i++) if ($i == "predicted") t[$2] = $(i + 1) / 1e3 }
            END { x = t["step"] + (again == "full" ? t["eval"] : 0)
                least = slots * layers / pp * host
                print s, (x > least ? x : least) + once, group }' >>"$dir/dense"
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
# vTrain, arXiv 2312.12391
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
