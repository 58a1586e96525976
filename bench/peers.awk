# The table of bench/run.sh: the best round of Kiln and of each peer (of a peer with several ways, the best way), and how
# many times Kiln's time the peer takes. Lines: JSON objects as the benchmarks and their peers print them.
function time_of(key, peer) {
    return (key, peer) in best ? sprintf("%.1f", best[key, peer]) : ""
}

function ratio_of(key, peer) {
    return (key, peer) in best && (key, "kiln") in best ? sprintf("%.2f", best[key, peer] / best[key, "kiln"]) : ""
}

field("peer") != "" {
    key = sprintf("%-18s %-20s", field("work"), field("batch"))
    peer = field("peer")
    sub(/[ .].*/, "", peer) # "torch eager", "torch fused adam", "jax.jit"
    us = field("us") + 0
    if (!(key in known)) {
        known[key] = 1
        order[++rows] = key
    }
    if (!((key, peer) in best) || us < best[key, peer])
        best[key, peer] = us
    has_jax = has_jax || peer == "jax"
}

END {
    printf "%-18s %-20s %12s %12s %10s %s\n", "work", "batch, size", "Kiln, us", "PyTorch, us", "times Kiln",
        has_jax ? "     JAX, us times Kiln" : ""
    for (i = 1; i <= rows; i++) {
        key = order[i]
        printf "%s %12s %12s %10s", key, time_of(key, "kiln"), time_of(key, "torch"), ratio_of(key, "torch")
        if ((key, "jax") in best)
            printf " %12s %10s", time_of(key, "jax"), ratio_of(key, "jax")
        printf "\n"
        if (ratio_of(key, "torch") != "" && ratio_of(key, "torch") < 1 / 1.2)
            slow = slow sprintf("    %s %s\n", key, ratio_of(key, "torch"))
    }
    if (slow != "")
        printf "\nWhere Kiln takes more than 1.2 times PyTorch's time:\n%s", slow
}
