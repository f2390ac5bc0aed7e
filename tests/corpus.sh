#!/bin/sh
# corpus.sh - what a fuzz target's libFuzzer found, as text that a tree can hold: tests/corpus/fuzz_*.txt.
#
#   tests/corpus.sh pack PROGRAM FOLDER >tests/corpus/NAME.txt     PROGRAM: the target with libFuzzer, FOLDER: its inputs;
#                                                                  after ./build.sh fuzz: build/fuzz/NAME.run build/fuzz/NAME
#   tests/corpus.sh unpack tests/corpus/NAME.txt FOLDER            a file in FOLDER for each input
#
# A line is an input: its bytes as hexadecimal numbers, a word xx*n for n bytes xx. Lines that begin with # are remarks.
# Packing takes inputs of 1,536 characters at most, of them those that libFuzzer's set cover needs, and of these, short and
# long ones alike, about 40 or 12,000 characters.

set -eu
LC_ALL=C
export LC_ALL

hex() {                 # file: its bytes as words, runs of eight and more as one
    od -An -v -tx1 "$1" | awk '
        BEGIN { last = "" }
        function flush() {
            if (run >= 8) { printf "%s%s*%d ", plain == "" ? "" : plain " ", last, run; plain = "" }
            else for (; run > 0; run--) plain = plain last
            run = 0
        }
        { for (i = 1; i <= NF; i++) { if ($i "" != last) { flush(); last = $i "" }; run++ } }
        END { flush(); print plain }' | sed 's/ $//'
}

pack() {                # program, folder
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/short" "$work/chosen"
    for file in "$2"/*; do
        line=$(hex "$file")
        if [ -n "$line" ] && [ ${#line} -le 1536 ]; then cp "$file" "$work/short"; fi
    done
    "$1" -set_cover_merge=1 -max_len=100000 "$work/chosen" "$work/short" >"$work/log" 2>&1 || { tail "$work/log" >&2; exit 1; }
    echo "# Inputs of $(basename "$1" .run), found by libFuzzer. See tests/corpus.sh."
    for file in "$work/chosen"/*; do
        line=$(hex "$file")
        echo "${#line} $line"
    done | sort -n | awk '
        { sum += $1; sub(/^[0-9]+ /, ""); line[NR] = $0 }
        END {
            step = 1
            if (NR / 40 > step) step = NR / 40
            if (sum / 12000 > step) step = sum / 12000
            for (i = 0; i < NR; i += step) print line[int(i) + 1]
        }'
}

unpack() {              # text, folder
    mkdir -p "$2"
    number=0
    awk '
        function octal(pair) { return sprintf("\\%03o", 16 * (index(digits, substr(pair, 1, 1)) - 1) + index(digits, substr(pair, 2, 1)) - 1) }
        BEGIN { digits = "0123456789abcdef" }
        /^#/ { next }
        {
            line = ""
            for (i = 1; i <= NF; i++) {
                if (split($i, run, "*") == 2) for (k = 0; k < run[2]; k++) line = line octal(run[1])
                else for (k = 1; k < length($i); k += 2) line = line octal(substr($i, k, 2))
            }
            print line
        }' "$1" | while IFS= read -r line; do
        number=$((number + 1))
        printf "$line" >"$2/found_$number"
    done
}

case ${1:-} in
pack|unpack) "$@" ;;
*) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
