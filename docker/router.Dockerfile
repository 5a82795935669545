# The router. From the top of the checkout:
#
#   docker build -f docker/router.Dockerfile -t inferway-router:0.1.0 .
#
# docs/compose.md tells how pip in here is led to another index.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

# bash for scripts/setup.sh: wheels only, at the pins of pyproject.toml.
FROM ${PYTHON_IMAGE} AS build
WORKDIR /build
COPY docker/pip/ /etc/inferway-pip/
COPY pyproject.toml ./
COPY scripts/setup.sh scripts/
ENV PIP_CONFIG_FILE=/etc/inferway-pip/pip.conf
RUN PYTHON=python3 VENV=/opt/venv scripts/setup.sh router \
    && /opt/venv/bin/python -m pip uninstall --quiet --yes pip setuptools
WORKDIR /app
COPY inferway/ inferway/
COPY router/ router/
# The root file system is not written to later.
RUN /opt/venv/bin/python -m compileall -q . && /opt/venv/bin/python -m router --help >/dev/null

FROM ${PYTHON_IMAGE}
# A number, so that Kubernetes can see that it is not root.
RUN groupadd --gid 10001 inferway && useradd --uid 10001 --gid 10001 --create-home inferway \
    # Where a volume goes, so that a new one is this user's.
    && install -d -o 10001 -g 10001 /etc/inferway/secrets
COPY --from=build /opt/venv /opt/venv
COPY --from=build /app /app
WORKDIR /app
USER 10001:10001

# Loopback would be of no use in here. Off loopback the router starts only with a token (or --insecure).
ENV PATH=/opt/venv/bin:$PATH \
    INFERWAY_ROUTER_LISTEN=0.0.0.0:50050 \
    INFERWAY_ROUTER_OPS_LISTEN=0.0.0.0:9100
EXPOSE 50050 9100

# What metrics call the revision; last, since it differs from build to build.
ARG REVISION=
ENV INFERWAY_REVISION=${REVISION}

# Drains. The grace period must be longer than --drain-delay-s and --drain-limit-s together.
STOPSIGNAL SIGTERM

# No HEALTHCHECK: Kubernetes ignores it and has probes of its own, and docker-compose.yml has its own.
ENTRYPOINT ["python", "-m", "router"]
