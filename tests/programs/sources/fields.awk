# fields.awk: arrays, regular expressions and a coprocess of gawk.
function chance() { x = (x * 1103515 + 12345) % 2147483648; return int(x / 256) }
BEGIN {
    x = 12345
    sorter = "sort -n"
    for (r = 1; r <= rounds; r++) {
        text = ""
        for (i = 0; i < 2000; i++) text = text sprintf("%c", 97 + chance() % 26)
        n = split(gensub(/[^aeiou]+/, " ", "g", text), parts, " ")
        for (i = 1; i <= n; i++) counts[parts[i]]++
        best = ""
        for (k in counts) if (best == "" || counts[k] > counts[best] || (counts[k] == counts[best] && k < best)) best = k
        print counts[best] % 1000, r, best |& sorter
        if (r % 200 == 0) { print r, best, counts[best], length(counts); fflush() }
    }
    close(sorter, "to")
    while ((sorter |& getline line) > 0) if (NR++ % 100 == 0) print line
}
