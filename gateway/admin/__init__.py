"""The port for admins: tenants, keys, blocks and running requests, over HTTP and JSON (docs/admin.md)."""
