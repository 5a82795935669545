#!/usr/bin/env bash
# The slow tests, those that wait for proxies over minutes beside the others. The last line counts both.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
started=$SECONDS
over_time=tests/component/test_proxies_over_time.py

.venv/bin/python -m pytest -m slow $over_time "$@" >"$out/over_time" 2>&1 &
waiting=$!
.venv/bin/python -m pytest -m slow tests --ignore $over_time "$@" 2>&1 | tee "$out/others"
others=${PIPESTATUS[0]}
wait $waiting
over=$?
cat "$out/over_time"
# Where a filter leaves none of them.
none=5
[ "$others" -eq $none ] && others=0
[ "$over" -eq $none ] && over=0
scripts/summary.sh 0 0 $((SECONDS - started)) "$out/others" "$others" "$out/over_time" "$over"
[ "$others" -eq 0 ] && [ "$over" -eq 0 ]
