# The table of bench/ab: medians of both builds, the median of the rounds' ratios and their quartiles.
# Lines: round, "old" or "new", a JSON object. preferred: "us" or "cpu_us"; within: per cent that NEW may take longer, or
# nothing.
function note(kind, x) {
    if (x == "")
        return
    if (!((name, kind) in known)) {
        known[name, kind] = 1
        order[++rows] = name SUBSEP kind
    }
    taken[name, kind, $1, $2] = x + 0
    last = $1 + 0 > last ? $1 + 0 : last
}

# The median of one build's rounds.
function median(row, who,   list, n, round) {
    for (round = 1; round <= last; round++)
        if ((row, round, who) in taken)
            list[++n] = taken[row, round, who]
    sort(list, n)
    return n ? quantile(list, n, 0.5) : ""
}

function both(row,   round) {
    for (round = 1; round <= last; round++)
        if ((row, round, "old") in taken && (row, round, "new") in taken)
            return 1
    return 0
}

# Of time and processor time one is compared: what was asked for, where both builds tell it.
function is_compared(name, kind,   processor) {
    processor = preferred == "cpu_us" && both(name SUBSEP "cpu_us")
    return kind == "us" ? !processor : kind == "cpu_us" ? processor : 1
}

function compare(row, name, kind,   list, n, round, middle) {
    for (round = 1; round <= last; round++)
        if ((row, round, "old") in taken && (row, round, "new") in taken && taken[row, round, "old"] > 0)
            list[++n] = taken[row, round, "new"] / taken[row, round, "old"]
    if (!n) {
        printf "%-40s %-13s %10s %10s   in one of them only\n", name, unit(kind), median(row, "old"), median(row, "new")
        return
    }
    sort(list, n)
    middle = quantile(list, n, 0.5)
    printf "%-40s %-13s %10.2f %10.2f %8.3f   %.3f to %.3f\n", name, unit(kind), median(row, "old"), median(row, "new"), middle,
        quantile(list, n, 0.25), quantile(list, n, 0.75)
    slower += within != "" && middle > 1 + within / 100
}

function unit(kind) {
    return kind == "cpu_us" ? "us, processor" : kind
}

{
    name = subject()
    if (field("us") != "") {
        note("us", field("us"))
        note("cpu_us", field("cpu_us"))
    } else {
        note("us to record", field("record_us"))
        note("us to replay", field("replay_us"))
        note("ns a node", field("record_ns_a_node"))
        note("ms to plan", field("plan_and_describe_ms"))
    }
}

END {
    if (!rows) {
        print "nothing was measured"
        exit 2
    }
    printf "%-40s %-13s %10s %10s %8s   %s\n", "work", "", "old", "new", "new/old", "quartiles"
    for (r = 1; r <= rows; r++) {
        split(order[r], part, SUBSEP)
        if (is_compared(part[1], part[2]))
            compare(order[r], part[1], part[2])
    }
    if (slower)
        printf "%d take more than %s %% longer\n", slower, within
    exit slower > 0
}
