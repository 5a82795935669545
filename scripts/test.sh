#!/usr/bin/env bash
# Everything that `make test` checks. All of it runs, whatever fails, so that one run shows everything; the last line
# counts it as pytest does, each of lint, format and types as one test.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
started=$SECONDS
failed=()
passed=0

check() {
    local name=$1
    shift
    if "$@" >"$out/$name" 2>&1; then
        passed=$((passed + 1))
        echo "$name: $(tail -n 1 "$out/$name")"
    else
        failed+=("$name")
        cat "$out/$name"
        echo "$name: FAILED"
    fi
}

check lint $bin/ruff check .
check format $bin/ruff format --check .
check types $bin/mypy

# Tests of processes mostly wait, those of pure parts compute: side by side, in halves of about the same length, they
# take two thirds of the time.
$bin/python -m pytest tests/component --ignore-glob '*/test_[a-e]*.py' >"$out/second" 2>&1 &
second=$!
$bin/python -m pytest tests --ignore-glob '*/component/test_[f-z]*.py' 2>&1 | tee "$out/first"
first=${PIPESTATUS[0]}
wait $second
second=$?
cat "$out/second"
[ "$first" -eq 0 ] && [ "$second" -eq 0 ] && [ ${#failed[@]} -eq 0 ] && result=0 || result=1

if [ ${#failed[@]} -gt 0 ]; then echo "FAILED: ${failed[*]}"; fi
scripts/summary.sh "$passed" ${#failed[@]} $((SECONDS - started)) "$out/first" "$first" "$out/second" "$second"
exit $result
