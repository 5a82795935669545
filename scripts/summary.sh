#!/usr/bin/env bash
# summary.sh OUTPUT STATUS PASSED FAILED SECONDS: prints one line like pytest's last, the counts of pytest's output
# in the file OUTPUT and those given added together. A run that broke off (STATUS not 0, nothing failed) is an error.
set -euo pipefail
awk -v status="$2" -v more_passed="$3" -v more_failed="$4" -v seconds="$5" '
    /^(=+ )?([0-9]+ [a-z]+, )*[0-9]+ [a-z]+ in [0-9.]+ ?s/ { line = $0 }
    END {
        count["passed"] = more_passed; count["failed"] = more_failed
        words = split(line, word, /[ ,=]+/)
        for (i = 1; i < words; i++)
            if (word[i] ~ /^[0-9]+$/ && word[i + 1] ~ /^[a-z]+$/) { sub(/^errors$/, "error", word[i + 1]); count[word[i + 1]] += word[i] }
        if (status != 0 && !count["failed"] && !count["error"]) count["error"] = 1
        names = split("failed passed skipped xfailed error", name, " ")
        for (i = 1; i <= names; i++) if (count[name[i]]) text = text (text ? ", " : "") count[name[i]] " " name[i]
        print "===== " text " in " seconds "s ====="
    }' "$1"
