"""Tests that are written in JavaScript and run by Node's own runner; each of them is a subtest here."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cases.installation import Installation
from tests.clients.installation import FORBIDDEN, KEY, REAL, REAL_ANSWER, REAL_CHAT
from tests.clients.javascript import FOLDER, run_node

# For all tests of a file together.
LIMIT_S = 100


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.test.js")))
def test_file(name: str, installation: Installation, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Every test of the file passes, and there are some."""
    report = tmp_path / "report.xml"
    done = run_node(
        "--test",
        "--test-reporter=junit",
        f"--test-reporter-destination={report}",
        name,
        env={
            "INFERWAY_BASE_URL": installation.mesh.url("/v1"),
            "INFERWAY_RECORD": str(installation.record_file),
            "INFERWAY_KEY": KEY,
            "INFERWAY_FORBIDDEN": FORBIDDEN,
            "INFERWAY_REAL": json.dumps({"model": REAL, "messages": REAL_CHAT, "answer": REAL_ANSWER}),
        },
        limit_s=LIMIT_S,
    )
    said = (done.stdout + done.stderr)[-4000:]
    assert report.exists(), said
    tests = list(ElementTree.parse(report).iter("testcase"))
    assert len(tests) > 10, said
    for test in tests:
        with subtests.test(test.attrib["name"]):
            failure = test.find("failure")
            assert failure is None, failure.text if failure is not None else ""
            assert test.find("skipped") is None
    assert done.returncode == 0 or any(test.find("failure") is not None for test in tests), said
