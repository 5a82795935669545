"""The worker: one engine behind the gRPC contract."""
