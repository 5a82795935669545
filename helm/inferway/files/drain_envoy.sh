#!/usr/bin/env bash
# drain_envoy.sh DELAY_S LIMIT_S: lets what runs through Envoy end before the container is stopped. Clients are told on
# their next answer that the connection closes; after DELAY_S, in which endpoints learn that this pod goes, it waits until
# no request runs, for LIMIT_S at most.
set -u
delay=$1 limit=$2
admin=${ADMIN_PORT:-9901}

ask() {
    exec 3<>"/dev/tcp/127.0.0.1/$admin" || return 1
    printf '%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n' "$1" "$2" >&3
    cat <&3
    exec 3<&-
}

running() { ask GET '/stats?filter=^http\.clients\.downstream_rq_active$' | tr -d '\r' | sed -n 's/^http.clients.downstream_rq_active: //p'; }

ask POST '/drain_listeners?graceful&skip_exit' >/dev/null
sleep "$delay"
until=$((SECONDS + limit))
while [ "$SECONDS" -lt "$until" ]; do
    left=$(running)
    if [ "${left:-0}" -eq 0 ]; then break; fi
    sleep 1
done
# What it has of traces is sent twice a second, and not when it is stopped.
sleep 1
