"""What gateway, router and worker share: the generated API, errors, configuration, logs and metrics."""

# As in pyproject.toml: services run from a folder, where no package tells its version.
VERSION = "0.1.0"
