"""What gateway, router and worker share: the generated API, errors, configuration, logs and metrics."""

from __future__ import annotations

import os

# As in pyproject.toml: services run from a folder, where no package tells its version.
VERSION = "0.1.0"
# Of the source, where whoever has built this says it.
REVISION = os.environ.get("INFERWAY_REVISION", "") or "unknown"
