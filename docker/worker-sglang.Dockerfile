# The worker with its engine `sglang`, for a node with NVIDIA GPUs: docs/gpu.md. From the top of the checkout:
#
#   docker build -f docker/worker-sglang.Dockerfile -t inferway-worker-sglang .
#
# This image has not been built or run yet. What was looked up on 2026-11-30: SGLang publishes each release as
# vX.Y.Z and, with fewer development tools, as vX.Y.Z-runtime (v0.5.20 and v0.5.21 are in use under both names), for
# CUDA 13 since v0.5.20. The tags of v0.5.23 itself were not seen: if there is no -runtime, pass
# `--build-arg SGLANG_IMAGE=lmsysorg/sglang:v0.5.23`.
ARG SGLANG_IMAGE=lmsysorg/sglang:v0.5.23-runtime
FROM ${SGLANG_IMAGE}

WORKDIR /app

# The dependencies of every service, at their pins. Those of the extra `worker` stay out: SGLang 0.5.23 pins another
# tokenizers (0.23.2) and its extra `diffusion` another PyYAML (6.0.1), and this engine imports neither from here.
# Fails when a pin breaks a package that was whole before.
COPY pyproject.toml ./
RUN set -eu; work=$(mktemp -d); \
    python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
        >"$work/pins"; \
    python3 -m pip check >"$work/before" || true; \
    PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --only-binary :all: -r "$work/pins"; \
    python3 -m pip check >"$work/after" || true; \
    echo 'No broken requirements found.' >>"$work/before"; \
    if grep -vxFf "$work/before" "$work/after"; then \
        echo 'the pins of pyproject.toml break the packages above' >&2; \
        exit 1; \
    fi; \
    rm -r "$work"

# A number, so that Kubernetes can see that it is not root. Kernels that are compiled at run time are kept under HOME.
RUN groupadd --gid 10001 inferway && useradd --uid 10001 --gid 10001 --create-home inferway \
    # Where a volume goes, so that a new one is this user's.
    && install -d -o 10001 -g 10001 /etc/inferway/secrets
ENV HOME=/home/inferway

COPY inferway/ inferway/
COPY worker/ worker/
# Everything that a worker imports before it starts its engine is there. SGLang itself needs a driver, so not now.
RUN python3 -m worker --help >/dev/null

USER 10001:10001

# Loopback would be of no use in here. Off loopback the worker starts only with a token (or --insecure).
ENV INFERWAY_WORKER_LISTEN=0.0.0.0:50051 \
    INFERWAY_WORKER_OPS_LISTEN=0.0.0.0:9101
EXPOSE 50051 9101

# What metrics call the revision; last, since it differs from build to build.
ARG REVISION=
ENV INFERWAY_REVISION=${REVISION}

# Drains. The grace period must be longer than --drain-delay-s and --drain-limit-s together.
STOPSIGNAL SIGTERM

# No HEALTHCHECK: Kubernetes ignores it and has probes of its own for /health and /health/ready on port 9101, and a
# container that loads its model for minutes is neither healthy nor in need of a restart.
ENTRYPOINT ["python3", "-m", "worker", "--engine", "sglang"]
