#!/usr/bin/env bash
# Brings Prometheus and promtool, with apt where this user may. Where that cannot be, one line says so and the status is
# 0: the tests that need them are skipped and say so. Costs milliseconds where they are installed.
set -euo pipefail

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then exit 0; fi

missing() {
    echo "setup: $*; what needs it is left out. Get Prometheus 2.40 or later." >&2
    exit 0
}

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then missing "prometheus is not installed"; fi

install() {
    # Installed to be run by us, not to scrape this machine.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes install --no-install-recommends prometheus \
        >/dev/null 2>&1
}

echo "setup: installing prometheus with apt" >&2
if ! install; then
    # The lists of packages may be missing, or too old.
    apt-get --quiet update >/dev/null 2>&1 || true
    if ! install; then missing "prometheus could not be installed"; fi
fi
