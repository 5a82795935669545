#!/usr/bin/env bash
# For a machine that reaches no image registry: puts STAND-INS under the tags that the Dockerfiles and docker-compose.yml
# name, made of what apt and pip have. An image that is here already, or can be pulled, is left as it is. Only on an
# engine that scripts/setup_docker.sh has started: on another one false images would stay under true names. What a
# stand-in cannot show: that the real tag exists, and what its publisher puts in it.
set -euo pipefail
cd "$(dirname "$0")/../.."
docker=${DOCKER:-docker}
cache=.cache/containers
python_image=$(sed -n 's/^ARG PYTHON_IMAGE=//p' docker/gateway.Dockerfile)

say() { echo "stand_ins: $*" >&2; }

tag() { sed -n "s#^ *image: \(docker.io/$1:.*\)#\1#p" docker-compose.yml; }

# One refusal tells of the registry; asking for each image may take a minute each.
has_registry=
is_there() {
    if "$docker" image inspect "$1" >/dev/null 2>&1; then return 0; fi
    if [ "$has_registry" = no ]; then return 1; fi
    if timeout 300 "$docker" pull --quiet "$1" >/dev/null 2>&1; then return 0; fi
    if ! timeout 20 "$docker" pull --quiet docker.io/library/hello-world >/dev/null 2>&1; then has_registry=no; fi
    return 1
}

# Where stand-ins may not be, what is missing is an error.
may_be_made() {
    if [ -n "${OWN_ENGINE:-}" ]; then return; fi
    say "$1 is not here and cannot be pulled. A stand-in would stay on this engine under that name; none is made."
    exit 1
}

base() {
    may_be_made "$1"
    say "STAND-IN for $1: Debian 12 with its own Python"
    mkdir -p "$cache"
    if [ ! -e "$cache/base.tar" ]; then
        command -v mmdebstrap >/dev/null ||
            RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes install --no-install-recommends mmdebstrap \
                >/dev/null
        say "making a small Debian with mmdebstrap (a minute)"
        mmdebstrap --quiet --format=tar --variant=minbase --include=python3,python3-venv,ca-certificates,wget \
            --aptopt='Dir::Cache::pkgcache ""' --aptopt='Dir::Cache::srcpkgcache ""' \
            bookworm "$cache/base.tar.partial"
        mv "$cache/base.tar.partial" "$cache/base.tar"
    fi
    "$docker" import "$cache/base.tar" "$1" >/dev/null
}

# stand_in IMAGE USER FOLDER FILE=PATH...: that base with programs in it, and a folder for a volume.
stand_in() {
    local image=$1 user=$2 folder=$3 pair context
    shift 3
    may_be_made "$image"
    say "STAND-IN for $image: $*"
    context=$(mktemp -d)
    {
        echo "FROM $python_image"
        for pair in "$@"; do
            cp "${pair%%=*}" "$context/$(basename "${pair##*=}")"
            echo "COPY $(basename "${pair##*=}") ${pair##*=}"
        done
        echo "RUN install -d -o ${user%%:*} -g ${user##*:} $folder"
    } >"$context/Dockerfile"
    "$docker" build --quiet --tag "$image" "$context" >/dev/null
    rm -r "$context"
}

packaged() { .venv/bin/python -c "$1"; }

if ! is_there "$python_image"; then base "$python_image"; fi
image=$(tag envoyproxy/envoy)
if ! is_there "$image"; then
    stand_in "$image" 0:0 /etc/envoy "$(packaged 'from inferway.cli.front import find; print(find("envoy", {}))')=/usr/local/bin/envoy"
fi
image=$(tag valkey/valkey)
if ! is_there "$image"; then
    # Just what the health check asks of it.
    ping=$(mktemp)
    cat >"$ping" <<'PING'
#!/usr/bin/env bash
exec 3<>/dev/tcp/127.0.0.1/6379 && printf 'PING\r\n' >&3 && head -n 1 <&3
PING
    chmod 755 "$ping"
    stand_in "$image" 999:1000 /data \
        "$(packaged 'from tests.support.valkey import binary; print(binary())')=/usr/local/bin/valkey-server" \
        "$ping=/usr/local/bin/valkey-cli"
    rm "$ping"
fi
image=$(tag prom/prometheus)
if ! is_there "$image"; then
    scripts/setup_prometheus.sh
    stand_in "$image" 65534:65534 /prometheus "$(command -v prometheus)=/bin/prometheus"
fi
image=$(tag grafana/grafana)
if ! is_there "$image"; then
    say "NO image for $image, and nothing to stand in for it: its service is left out, only its files are checked"
fi
