#!/usr/bin/env bash
# Brings nginx, with apt where this user may. Where that cannot be, one line says so and the status is 0: what needs
# nginx says so itself. Costs milliseconds where it is installed.
set -euo pipefail

PATH=$PATH:/usr/sbin:/usr/local/sbin
if command -v nginx >/dev/null; then exit 0; fi

missing() {
    echo "setup: $*; what needs nginx is left out. Get it with 'apt-get install nginx-light' (Debian, Ubuntu) or" \
        "'brew install nginx'." >&2
    exit 0
}

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then missing "nginx is not installed"; fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

install() {
    # Installed to be run by us, not to serve on port 80.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes install --no-install-recommends nginx-light \
        >"$log" 2>&1
}

echo "setup: installing nginx-light with apt" >&2
if ! install; then
    # The lists of packages may be missing, or too old.
    apt-get --quiet update >"$log" 2>&1 || true
    if ! install; then
        tail -n 5 "$log" >&2
        missing "nginx-light could not be installed"
    fi
fi
