#!/usr/bin/env bash
# summary.sh PASSED FAILED SECONDS [OUTPUT STATUS]...: prints one line like pytest's last, the counts in each pytest
# run's OUTPUT and those given added together. A run that broke off (STATUS not 0, nothing failed) is an error.
set -euo pipefail
passed=$1 failed=$2 seconds=$3
shift 3
while [ $# -gt 0 ]; do
    line=$(grep -E '^(=+ )?([0-9]+ [a-z]+, )*[0-9]+ [a-z]+ in [0-9.]+ ?s' "$1" | tail -n 1 || true)
    echo "status $2 $line"
    shift 2
done | awk -v passed="$passed" -v failed="$failed" -v seconds="$seconds" '
    BEGIN { count["passed"] = passed; count["failed"] = failed }
    {
        broken = 0
        words = split($0, word, /[ ,=]+/)
        for (i = 3; i < words; i++)
            if (word[i] ~ /^[0-9]+$/ && word[i + 1] ~ /^[a-z]+$/) {
                sub(/^errors$/, "error", word[i + 1])
                count[word[i + 1]] += word[i]
                if (word[i + 1] == "failed" || word[i + 1] == "error") broken += word[i]
            }
        if (word[2] != 0 && !broken) count["error"]++
    }
    END {
        names = split("failed passed skipped xfailed error", name, " ")
        for (i = 1; i <= names; i++) if (count[name[i]]) text = text (text ? ", " : "") count[name[i]] " " name[i]
        print "===== " text " in " seconds "s ====="
    }'
