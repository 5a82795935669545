# The gateway; with `python -m inferway front` also what writes the configuration of the proxy before it. From the top of
# the checkout:
#
#   docker build -f docker/gateway.Dockerfile -t inferway-gateway:0.1.0 .
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
RUN PYTHON=python3 VENV=/opt/venv scripts/setup.sh gateway \
    && /opt/venv/bin/python -m pip uninstall --quiet --yes pip setuptools
WORKDIR /app
COPY inferway/ inferway/
COPY gateway/ gateway/
# The root file system is not written to later.
RUN /opt/venv/bin/python -m compileall -q . && /opt/venv/bin/python -m gateway --help >/dev/null

FROM ${PYTHON_IMAGE}
# A number, so that Kubernetes can see that it is not root.
RUN groupadd --gid 10001 inferway && useradd --uid 10001 --gid 10001 --create-home inferway \
    # Where volumes go, so that new ones are this user's.
    && install -d -o 10001 -g 10001 /etc/inferway/secrets /run/front /var/spool/inferway
COPY --from=build /opt/venv /opt/venv
COPY --from=build /app /app
WORKDIR /app
USER 10001:10001

# Loopback would be of no use in here. Off loopback the gateway starts only with keys of callers (or --insecure).
ENV PATH=/opt/venv/bin:$PATH \
    INFERWAY_GATEWAY_LISTEN=0.0.0.0:8000
EXPOSE 8000

# What metrics call the revision; last, since it differs from build to build.
ARG REVISION=
ENV INFERWAY_REVISION=${REVISION}

# Drains. The grace period must be longer than --drain-delay-s and --drain-limit-s together.
STOPSIGNAL SIGTERM

# No HEALTHCHECK: Kubernetes ignores it and has probes of its own, and docker-compose.yml has its own.
ENTRYPOINT ["python", "-m", "gateway"]
