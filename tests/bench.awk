# bench.awk - medians, ratios and spread of what bench.c and its peers printed in turn; also as JSON.
# Usage: awk -v json=FILE -v torch=VERSION -v cpu=NAME -f bench.awk LIST RESULTS

function sorted(key,    n, i, k, t) {       # into s[1..n]
    n = count[key]
    for (i = 1; i <= n; i++) s[i] = value[key, i]
    for (i = 2; i <= n; i++) for (k = i; k > 1 && s[k] < s[k - 1]; k--) { t = s[k]; s[k] = s[k - 1]; s[k - 1] = t }
    return n
}
function middle(key,    n) { n = sorted(key); return n ? s[int((n + 1) / 2)] : 0 }
function spread(key,    n) { n = sorted(key); return n ? 100 * (s[n] - s[1]) / s[int((n + 1) / 2)] : 0 }
# The median of the ratios b / a of neighbouring turns, which the machine's drift does not touch.
function ratio(a, b,    i, n) {
    n = count[a] < count[b] ? count[a] : count[b]
    count["ratio"] = n
    for (i = 1; i <= n; i++) value["ratio", i] = value[b, i] / value[a, i]
    return middle("ratio")
}
function put(field, v) { printf ", \"%s\": %.5g", field, v > json }
function dash(form, v) { return v > 0 ? sprintf(form, v) : "-" }
function begin(i) {                         # a row, in the table and in JSON
    printf "%-24s %2d", name[i], threads[i]
    printf "%s\n    {\"name\": \"%s\", \"threads\": %d", sep, name[i], threads[i] > json
    sep = ","
}
function end() { print ""; printf "}" > json }
function rows(g, head, json_name,    i, any) {
    for (i = 1; i <= loads; i++) if (group[i] == g) {
        if (!any++) { printf "\n%s\n", head; printf "%s\n  \"%s\": [", table++ ? "\n  ]," : "", json_name > json; sep = "" }
        begin(i)
        row(g, name[i] " " threads[i])
        end()
    }
}
function row(g, k,    ours, gflops, best) {
    ours = "nntrain " k
    if (g == "step" || g == "predict") {
        gflops = middle(ours) > 0 ? 1e3 * middle("flops " k) / middle(ours) : 0
        printf " %10.2f %4.0f%% %9.1f %5s", middle(ours), spread(ours), gflops, dash("%.0f%%", 100 * gflops / (middle("peak " k) + 1e-9))
        put("ms", middle(ours)); put("spread_percent", spread(ours)); put("gflops", gflops); put("peak_gflops", middle("peak " k))
        if (torch) {
            best = "torch_best " k
            printf " %10.2f %10.2f %4.0f%% %8.2f %8.2f  %s", middle("torch " k), middle(best), spread(best), ratio(ours, "torch " k), ratio(ours, best), settings[k]
            put("torch_ms", middle("torch " k)); put("torch_best_ms", middle(best)); put("ratio", ratio(ours, "torch " k)); put("ratio_best", ratio(ours, best))
            printf ", \"torch_settings\": \"%s\"", settings[k] > json
        }
    } else if (g == "start") {
        printf " %10.2f %4.0f%%", middle(ours), spread(ours)
        put("ms", middle(ours)); put("spread_percent", spread(ours))
        if (torch) { printf " %10.1f %8.1f", middle("torch " k), ratio(ours, "torch " k); put("torch_ms", middle("torch " k)); put("ratio", ratio(ours, "torch " k)) }
    } else if (g == "gemm") {
        printf " %10.1f %4.0f%% %9.1f %5s", middle(ours), spread(ours), middle("peak " k), dash("%.0f%%", 100 * ratio("peak " k, ours))
        printf " %10s %8s", dash("%.1f", middle("openblas " k)), dash("%.2f", ratio("openblas " k, ours))
        put("gflops", middle(ours)); put("peak_gflops", middle("peak " k)); put("openblas_gflops", middle("openblas " k)); put("ratio", ratio("openblas " k, ours))
    } else if (g == "threads") {
        printf " %10.2f %4.0f%%", middle(ours), spread(ours)
        put("microseconds", middle(ours))
    } else {
        printf " %10.1f %4.0f%% %10.1f %5s", middle(ours), spread(ours), middle("stream " k), dash("%.0f%%", 100 * ratio("stream " k, ours))
        put("gbytes", middle(ours)); put("stream_gbytes", middle("stream " k)); put("share", ratio("stream " k, ours))
    }
}

FILENAME ~ /list/ { group[++loads] = $1; name[loads] = $2; threads[loads] = $3; next }
NF >= 4 {
    key = $1 " " $2 " " $3
    value[key, ++count[key]] = $4
    if ($1 == "torch_best") settings[$2 " " $3] = NF > 4 ? $5 : "plain"
}
# PyTorch's best is never worse than as it comes.
$1 == "torch_best" { plain = "torch " $2 " " $3; if (value[plain, count[key]] < $4) value[key, count[key]] = value[plain, count[key]] }

END {
    if (cpu) print "processor: " cpu
    printf "{\n  \"cpu\": \"%s\",\n  \"torch\": \"%s\",", cpu, torch > json
    line = sprintf("%10s %5s %9s %5s", "ms", "sprd", "GFLOP/s", "peak")
    if (torch) line = line sprintf(" %10s %10s %5s %8s %8s  %s", "torch ms", "best ms", "sprd", "ratio", "to best", "best settings")
    rows("step", sprintf("%-27s %s", "training step   threads", line), "steps")
    rows("predict", sprintf("%-27s %s", "prediction, batch 1", line), "predictions")
    line = sprintf("%-27s %10s %5s", "start to the first step", "ms", "sprd")
    rows("start", torch ? line sprintf(" %10s %8s", "torch ms", "ratio") : line, "start")
    rows("gemm", sprintf("%-27s %10s %5s %9s %5s %10s %8s", "product", "GFLOP/s", "sprd", "FMA peak", "share", "OpenBLAS", "ratio"), "products")
    rows("ops", sprintf("%-27s %10s %5s %10s %5s", "bound by memory", "GB/s", "sprd", "stream", "share"), "ops")
    rows("threads", sprintf("%-27s %10s %5s", "parallel region", "us", "sprd"), "threads")
    print (table ? "\n  ]\n}" : "\n  \"nothing\": []\n}") > json
    if (torch) print "\nratio: PyTorch's time over nntrain's, above 1 nntrain is faster; the median of the ratios of neighbouring turns"
    print "\nthe same figures: " json
}
