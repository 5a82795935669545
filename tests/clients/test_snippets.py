"""What docs/clients.md tells people to write runs as it stands there, but for the address, the key and the models."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.clients.installation import ADA, KEY
from tests.clients.javascript import run_node
from tests.support.processes import ROOT

SNIPPETS: list[tuple[str, str]] = re.findall(
    r"^```(python|js)\n(.*?)^```$", (ROOT / "docs" / "clients.md").read_text(), re.M | re.S
)
# What stands in the page, and what takes its place.
REPLACED = {
    '"any"': f'"{KEY}"',
    "all-minilm-l6-v2": "m-embed",
    # Models that echo: one of them is told the answer.
    "smollm2-135m-instruct": "m-text",
    "a-model-of-some-size": "m-text",
    '"Ada is 36 years old."': repr(ADA),
}


def prepared(code: str, base_url: str) -> str:
    for there, here in {"http://127.0.0.1:8000/v1": base_url, **REPLACED}.items():
        code = code.replace(there, here)
    assert base_url in code
    return code


@pytest.mark.parametrize("code", [code for language, code in SNIPPETS if language == "python"])
def test_python(code: str, base_url: str) -> None:
    """It prints an answer."""
    done = subprocess.run(
        [sys.executable, "-c", prepared(code, base_url)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


@pytest.mark.parametrize("code", [code for language, code in SNIPPETS if language == "js"])
def test_javascript(code: str, base_url: str) -> None:
    """It prints an answer."""
    done = run_node("--input-type=module", "--eval", prepared(code, base_url), env={}, limit_s=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_every_client_of_the_page_has_one() -> None:
    """Seven of them, so that none is lost to a fence that does not match."""
    assert [language for language, _ in SNIPPETS] == ["python", "js", "python", "python", "python", "js", "js"]
