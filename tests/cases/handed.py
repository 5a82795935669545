"""The file of handed cases, and the mark that ties a test to some of them.

Whoever imports this skips, with one reason, where the file is not there.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import yaml

from tests.cases.installation import CASES_FILE

# A file that was asked for must be there.
if not CASES_FILE.exists() and not os.environ.get("INFERWAY_CASES"):
    pytest.skip(
        "the case file ../shared/cases/handed.yaml is not here; INFERWAY_CASES=/path names another",
        allow_module_level=True,
    )

CASES: dict[str, Any] = {case["id"]: case for case in yaml.safe_load(CASES_FILE.read_text())}


def case(*ids: str) -> pytest.MarkDecorator:
    """Run the test once for each of these ids; its argument `case` is the entry of the file."""
    return pytest.mark.parametrize("case", [pytest.param(CASES[name], id=name) for name in ids])
