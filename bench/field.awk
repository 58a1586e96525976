# What the scripts that read the benchmarks' lines share: a field of a JSON object on one line, lists and their quantiles.
function field(name,   text) {
    if (!match($0, "\"" name "\": *(\"[^\"]*\"|[^,}]*)"))
        return ""
    text = substr($0, RSTART, RLENGTH)
    sub(/^[^:]*: */, "", text)
    gsub(/"/, "", text)
    return text
}

# What a line is about: the work, and what distinguishes it from others of this name.
function subject(   name, size) {
    size = field("batch") != "" ? field("batch") : field("nodes")
    name = field("work") (size != "" ? " " size : "")
    return field("workers") != "" ? name ", workers " field("workers") : name
}

# Sorts list[1 … n] of numbers.
function sort(list, n,   i, j, x) {
    for (i = 2; i <= n; i++) {
        x = list[i]
        for (j = i - 1; j >= 1 && list[j] > x; j--)
            list[j + 1] = list[j]
        list[j + 1] = x
    }
}

# Of a sorted list, between its elements where none is at that place.
function quantile(list, n, q,   place, low) {
    place = 1 + (n - 1) * q
    low = int(place)
    return low >= n ? list[n] : list[low] + (place - low) * (list[low + 1] - list[low])
}
