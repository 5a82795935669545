"""What gateway, router and worker share: the generated API, errors, configuration, logs and metrics."""
