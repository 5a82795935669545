#!/usr/bin/env bash
# A Docker engine for tests. `scripts/setup_docker.sh start` prints the lines that a shell is to evaluate (DOCKER,
# DOCKER_HOST, and OWN_ENGINE where the engine is this script's); `stop` removes whatever start has brought up. Where an
# engine already answers, that one is used and left alone. Else, as root on Debian, docker.io comes from apt and dockerd
# runs by hand with a socket and a data root of its own, in .cache/containers/engine or DOCKER_STATE: nothing is changed
# in the system's own Docker, and nothing stays but the packages.
set -euo pipefail
mkdir -p "$(dirname "$0")/../.cache/containers"
state=${DOCKER_STATE:-$(cd "$(dirname "$0")/../.cache/containers" && pwd -P)/engine}
# An address of a socket has 107 bytes; the longest here is exec/containerd/containerd.sock.ttrpc.
state_max_chars=70
socket=unix://$state/docker.sock

fail() {
    echo "setup_docker: $*" >&2
    exit 1
}

say() { echo "setup_docker: $*" >&2; }

# The package's own client goes with its engine; another one in the PATH may be too new for it.
client() {
    if [ -x /usr/bin/docker ]; then echo /usr/bin/docker; else command -v docker || true; fi
}

has_packages() { [ -x /usr/sbin/dockerd ] && command -v docker-compose >/dev/null; }

bring_packages() {
    if has_packages; then return; fi
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
        fail "no Docker engine answers, and one can be installed only by root on Debian or Ubuntu: start Docker and repeat."
    say "installing docker.io and docker-compose with apt"
    # RUNLEVEL: installed to be started by us.
    install() {
        RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes install --no-install-recommends \
            docker.io docker-compose iptables >"$state/apt.log" 2>&1
    }
    if ! install; then
        apt-get --quiet update >/dev/null 2>&1 || true
        install || { tail -n 5 "$state/apt.log" >&2; fail "docker.io could not be installed."; }
    fi
}

start() {
    local docker
    docker=$(client)
    if [ -n "$docker" ] && "$docker" info >/dev/null 2>&1; then
        echo "export DOCKER=$docker"
        return
    fi
    if [ -n "$docker" ] && DOCKER_HOST=$socket "$docker" info >/dev/null 2>&1; then
        printf 'export DOCKER=%s DOCKER_HOST=%s OWN_ENGINE=yes\n' "$docker" "$socket"
        return
    fi
    [ "${#state}" -le "$state_max_chars" ] ||
        fail "$state is too long for the addresses of sockets: let DOCKER_STATE name a folder of at most $state_max_chars letters."
    mkdir -p "$state"
    bring_packages
    docker=$(client)
    iptables -S FORWARD 2>/dev/null | head -n 1 >"$state/forward" || true
    cat /proc/sys/net/ipv4/ip_forward >"$state/ip_forward"
    setsid nohup /usr/sbin/dockerd --host "$socket" --data-root "$state/data" --exec-root "$state/exec" \
        --pidfile "$state/dockerd.pid" >"$state/dockerd.log" 2>&1 </dev/null &
    local tries
    for tries in $(seq 120); do
        if DOCKER_HOST=$socket "$docker" info >/dev/null 2>&1; then
            say "an engine of its own is up ($tries tries), in $state"
            printf 'export DOCKER=%s DOCKER_HOST=%s OWN_ENGINE=yes\n' "$docker" "$socket"
            return
        fi
        sleep 0.5
    done
    tail -n 10 "$state/dockerd.log" >&2
    fail "dockerd does not answer."
}

# What dockerd leaves in the kernel: its bridge and its rules. Rules of others stay as they are.
remove_rules() {
    local tables
    for tables in iptables ip6tables; do
        command -v "$tables-save" >/dev/null || continue
        "$tables-save" 2>/dev/null | grep -v -e DOCKER -e docker0 | "$tables-restore" 2>/dev/null || true
    done
    # "-P FORWARD ACCEPT": dockerd sets it to DROP.
    # shellcheck disable=SC2046
    iptables $(cat "$state/forward" 2>/dev/null) 2>/dev/null || true
}

# A number that is kept in a file may be another process's by now.
is_engine() { [ "$(cat "/proc/$1/comm" 2>/dev/null)" = dockerd ]; }

stop() {
    [ -d "$state" ] || return 0
    local pid
    pid=$(cat "$state/dockerd.pid" 2>/dev/null || true)
    if [ -n "$pid" ] && is_engine "$pid"; then
        kill "$pid"
        local tries
        for tries in $(seq 120); do
            is_engine "$pid" || break
            sleep 0.5
        done
        if is_engine "$pid"; then fail "dockerd ($pid) does not end ($tries tries): see $state/dockerd.log"; fi
    fi
    # Another engine on this machine, of another checkout or the system's, has the same bridge and chains.
    if ! pgrep -x dockerd >/dev/null; then
        ip link delete docker0 2>/dev/null || true
        remove_rules
        cat "$state/ip_forward" >/proc/sys/net/ipv4/ip_forward 2>/dev/null || true
    fi
    awk -v root="$state/" 'index($2, root) == 1 { print $2 }' /proc/mounts | sort -r | while read -r mounted; do
        umount "$mounted" 2>/dev/null || true
    done
    rm -rf "$state"
    say "the engine and all that it had are gone"
}

case "${1:-}" in
    start) start ;;
    stop) stop ;;
    *) fail "start or stop?" ;;
esac
