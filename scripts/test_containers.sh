#!/usr/bin/env bash
# `make test-containers`: an engine, images, docker-compose.yml on it, the tests of tests/containers, then the figures.
# Whatever it starts it removes. KEEP=1 leaves the engine and the images for the next run.
set -euo pipefail
cd "$(dirname "$0")/.."
figures=$(mktemp)
started=$SECONDS

finish() {
    rm -f "$figures"
    if [ -z "${KEEP:-}" ]; then scripts/setup_docker.sh stop; fi
}
trap finish EXIT

settings=$(scripts/setup_docker.sh start)
eval "$settings"
command -v docker-compose >/dev/null || {
    echo "test_containers: docker-compose is missing: install it (1.29 or later), then repeat." >&2
    exit 1
}
tests/containers/stand_ins.sh
scripts/build_images.sh | tee "$figures"
echo "inferway-worker-sglang: not built, its base (lmsysorg/sglang, many GB) comes from a registry only" | tee -a "$figures"
echo "up to here: $((SECONDS - started)) s" | tee -a "$figures"

status=0
INFERWAY_CONTAINERS=1 INFERWAY_FIGURES=$figures .venv/bin/python -m pytest tests/containers --timeout 300 "$@" || status=$?
echo "Figures ($(nproc) cores, load $(cut -d ' ' -f 1 /proc/loadavg)):"
sed 's/^/  /' "$figures"
exit "$status"
