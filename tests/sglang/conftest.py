"""The tests of this folder run in the environment of scripts/setup_sglang.sh: `make test-sglang`."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("sglang") else ["test_sglang_*.py"]
