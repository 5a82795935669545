#!/usr/bin/env bash
# Everything that `make test` checks. All of it runs, whatever fails, so that one run shows everything; the last line
# counts it as pytest does, each of lint, format and types as one test.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
out=$(mktemp)
trap 'rm -f "$out"' EXIT
started=$SECONDS
failed=()
passed=0

check() {
    local name=$1
    shift
    if "$@" >"$out" 2>&1; then
        passed=$((passed + 1))
        echo "$name: $(tail -n 1 "$out")"
    else
        failed+=("$name")
        cat "$out"
        echo "$name: FAILED"
    fi
}

check lint $bin/ruff check .
check format $bin/ruff format --check .
check types $bin/mypy

$bin/python -m pytest tests 2>&1 | tee "$out"
status=${PIPESTATUS[0]}
[ "$status" -eq 0 ] && [ ${#failed[@]} -eq 0 ] && result=0 || result=1

if [ ${#failed[@]} -gt 0 ]; then echo "FAILED: ${failed[*]}"; fi
scripts/summary.sh "$out" "$status" "$passed" ${#failed[@]} $((SECONDS - started))
exit $result
