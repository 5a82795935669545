#!/usr/bin/env bash
# Envoy with the end that the chart's preStop gives it: after SIGTERM it serves until nothing runs any more, two minutes at
# most, which is the drain limit of gateways.
set -u

envoy --config-path /run/front/envoy.yaml --disable-hot-restart --log-level warning --concurrency 2 &
envoy=$!
stopping=
drain() {
    trap '' TERM INT
    stopping=yes
    bash /opt/front/drain_envoy.sh 0 120
    kill "$envoy"
}
trap drain TERM INT
wait "$envoy"
status=$?
# A signal ends the first wait before Envoy ends.
if [ -n "$stopping" ]; then
    wait "$envoy"
    status=$?
fi
exit "$status"
