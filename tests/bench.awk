# bench.awk - medians, ratios and spread of what bench.c and bench_torch.py printed in turn; also as JSON.
# Usage: awk -v json=FILE -v torch=VERSION -v cpu=NAME -f bench.awk RESULTS

function sorted(key,    n, i, k, t) {       # into s[1..n]
    n = count[key]
    for (i = 1; i <= n; i++) s[i] = value[key, i]
    for (i = 2; i <= n; i++) for (k = i; k > 1 && s[k] < s[k - 1]; k--) { t = s[k]; s[k] = s[k - 1]; s[k - 1] = t }
    return n
}
function middle(key,    n) { n = sorted(key); return n ? s[int((n + 1) / 2)] : 0 }
function spread(key,    n) { n = sorted(key); return n ? 100 * (s[n] - s[1]) / s[int((n + 1) / 2)] : 0 }
# The median of the ratios of neighbouring turns, which the machine's drift does not touch.
function ratio(a, b,    i, n) {
    n = count[a] < count[b] ? count[a] : count[b]
    count["ratio"] = n
    for (i = 1; i <= n; i++) value["ratio", i] = value[b, i] / value[a, i]
    return middle("ratio")
}

NF == 4 { key = $1 " " $2 " " $3; value[key, ++count[key]] = $4 }

END {
    if (cpu) print "processor: " cpu
    printf "\n%-26s %12s %7s", "training step, batch 64", "nntrain ms", "spread"
    if (torch) printf " %12s %7s %12s %9s %9s", "torch ms", "spread", "tuned ms", "ratio", "to tuned"
    print ""
    printf "{\n  \"cpu\": \"%s\",\n  \"torch\": \"%s\",\n  \"steps\": [", cpu, torch > json
    nets = split("mlp cnn", net, " ")
    title["mlp"] = "MLP 784-128-10"
    title["cnn"] = "CNN 28x28"
    for (i = 1; i <= nets; i++) for (t = 1; t <= 2; t++) {
        k = net[i] " " t
        printf "%-15s %d thread%-3s %11.3f %5.0f %%", title[net[i]], t, (t > 1 ? "s" : ""), middle("nntrain " k), spread("nntrain " k)
        if (torch) printf " %12.3f %5.0f %% %12.3f %8.2fx %8.2fx", middle("torch " k), spread("torch " k), middle("torch_best " k),
            ratio("nntrain " k, "torch " k), ratio("nntrain " k, "torch_best " k)
        print ""
        printf "%s\n    {\"net\": \"%s\", \"threads\": %d, \"nntrain_ms\": %.4f", sep, net[i], t, middle("nntrain " k) > json
        if (torch) printf ", \"torch_ms\": %.4f, \"torch_tuned_ms\": %.4f, \"ratio\": %.3f, \"ratio_tuned\": %.3f", middle("torch " k),
            middle("torch_best " k), ratio("nntrain " k, "torch " k), ratio("nntrain " k, "torch_best " k) > json
        printf "}" > json
        sep = ","
    }
    printf "\n  ],\n  \"gemm_1024\": [" > json
    sep = ""
    printf "\n%-26s %12s %12s %9s", "gemm 1024 x 1024 x 1024", "GFLOP/s", "FMA peak", "share"
    if (torch) printf " %14s", "torch GFLOP/s"
    print ""
    for (t = 1; t <= 2; t++) {
        peak = middle("nntrain peak " t)
        share = peak > 0 ? 100 * ratio("nntrain peak " t, "nntrain gemm " t) : 0
        printf "%15s %d thread%-3s %11.1f %12.1f %7.0f %%", "", t, (t > 1 ? "s" : ""), middle("nntrain gemm " t), peak, share
        if (torch) printf " %14.1f", middle("torch gemm " t)
        print ""
        printf "%s\n    {\"threads\": %d, \"gflops\": %.2f, \"peak_gflops\": %.2f, \"share\": %.3f}", sep, t, middle("nntrain gemm " t),
            peak, share / 100 > json
        sep = ","
    }
    print "\n  ]\n}" > json
    if (torch) print "\nratio: torch's time over nntrain's, above 1 nntrain is faster; the median of the ratios of neighbouring turns"
    print "\nthe same figures: " json
}
