#!/usr/bin/env bash
# Builds our images: scripts/build_images.sh [IMAGE...], of gateway, router, worker-cpu and worker-sglang; the first three
# without arguments. Prints a line for each: name, seconds, size. Where pip on this machine is configured (an index, a
# certificate), pip in the builds is told the same through docker/pip; BUILD_FLAGS goes to `docker build`.
set -euo pipefail
cd "$(dirname "$0")/.."
docker=${DOCKER:-docker}
revision=$(git rev-parse --short=12 HEAD 2>/dev/null || true)
version=$(sed -n 's/^appVersion: //p' helm/inferway/Chart.yaml)
folder=docker/pip

clean() { rm -f "$folder/pip.conf" "$folder/ca.crt"; }

# What `pip config list` says of where packages come from. Paths of this machine mean nothing in a build, so an index or
# a folder of files is left out.
lead_pip() {
    local settings name value
    settings=$(python3 -m pip config list 2>/dev/null || true)
    {
        echo "[global]"
        for name in index-url extra-index-url trusted-host proxy timeout; do
            value=$(sed -n "s/^\(global\|:env:\|install\)\.$name='\(.*\)'$/\2/p" <<<"$settings" | tail -n 1)
            # Several stand on lines of their own within the quotes.
            value=$(printf '%b' "$value" | tr ' ' '\n' | grep -v -e '^file:' -e '^/' -e '^$' | tr '\n' ' ' || true)
            if [ -n "$value" ]; then echo "$name = $value"; fi
        done
        value=$(sed -n "s/^\(global\|:env:\|install\)\.cert='\(.*\)'$/\2/p" <<<"$settings" | tail -n 1)
        if [ -n "$value" ] && [ -r "$value" ]; then
            cp "$value" "$folder/ca.crt"
            echo "cert = /etc/inferway-pip/ca.crt"
        fi
    } >"$folder/pip.conf"
}

if [ ! -e "$folder/pip.conf" ]; then
    trap clean EXIT
    lead_pip
fi
log=$(mktemp)
[ $# -gt 0 ] || set -- gateway router worker-cpu
for one in "$@"; do
    image=inferway-${one%-cpu}:$version
    started=$(date +%s%N)
    # shellcheck disable=SC2086
    if ! "$docker" build ${BUILD_FLAGS:-} --build-arg "REVISION=$revision" \
        --file "docker/$one.Dockerfile" --tag "$image" . >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        echo "build_images: docker/$one.Dockerfile could not be built: the lines above say why." >&2
        exit 1
    fi
    took=$((($(date +%s%N) - started) / 100000000))
    size=$("$docker" image inspect --format '{{.Size}}' "$image")
    echo "$image: built in $((took / 10)).$((took % 10)) s, $((size / 1000000)) MB"
done
rm -f "$log"
