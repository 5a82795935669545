"""scripts/setup.sh and scripts/summary.sh, as make calls them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(script: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / script, *arguments], env=os.environ | environ, capture_output=True, text=True, timeout=60
    )


def stand_in(folder: Path, refuses: str) -> str:
    """A Python that fails when what it is to run contains `refuses`."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\ncase "$*" in *{refuses}*) exit 1;; esac\nexec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("refuses", "sentence"),
    [
        ("version_info", "is not a Python of version 3.11 or later."),
        ("ensurepip", "has no venv module: install it with 'apt-get install python3-venv'"),
        pytest.param(
            "libgomp",
            "the CPU engine needs the system library libgomp.so.1: install it with 'apt-get install libgomp1'",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="only needed on Linux"),
        ),
    ],
)
def test_what_is_missing_is_told_in_a_sentence(tmp_path: Path, refuses: str, sentence: str) -> None:
    """Each thing that a machine may lack ends the set-up at once, with one line that says how to get it."""
    done = run("setup.sh", "llamacpp", PYTHON=stand_in(tmp_path, refuses), VENV=str(tmp_path / "venv"))
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("setup: ")
    assert sentence in line
    assert not (tmp_path / "venv").exists()


def test_nothing_is_done_twice(tmp_path: Path) -> None:
    """With the stamp of the same pins, extras that are installed need neither pip nor the network."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    version = subprocess.run(
        "cat pyproject.toml scripts/setup.sh | cksum | tr ' ' '-'",
        shell=True,
        cwd=SCRIPTS.parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    (tmp_path / ".inferway-setup").write_text(f"{version} base\n{version} router\n")

    done = run("setup.sh", "router", VENV=str(tmp_path), PYTHON="/nowhere")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    # An extra that is not there yet is not taken for installed.
    assert run("setup.sh", "router", "worker", VENV=str(tmp_path), PYTHON="/nowhere").returncode == 1


@pytest.mark.parametrize(
    ("output", "status", "expected"),
    [
        ("== 412 passed in 38.21s ==", 0, "===== 415 passed in 60s ====="),
        ("412 passed in 61.00s (0:01:01)", 0, "===== 415 passed in 60s ====="),
        (
            "= 2 failed, 7 passed, 1 skipped, 3 errors in 1.2s =",
            1,
            "===== 2 failed, 10 passed, 1 skipped, 3 error in 60s =====",
        ),
        ("2 failed in a row of 3 in 9 lines\n= 5 passed in 0.1s =\nbye", 0, "===== 8 passed in 60s ====="),
        ("ImportError: no tests", 4, "===== 3 passed, 1 error in 60s ====="),
    ],
)
def test_the_summary_adds_up(tmp_path: Path, output: str, status: int, expected: str) -> None:
    """The last line has pytest's counts and the other checks together; a run that broke off counts as an error."""
    path = tmp_path / "output"
    path.write_text(output + "\n")
    assert run("summary.sh", "3", "0", "60", str(path), str(status)).stdout == expected + "\n"


def test_the_summary_adds_up_several_runs(tmp_path: Path) -> None:
    """One that broke off is an error beside whatever failed in the others."""
    outputs = [("2 failed, 5 passed in 9s", 1), ("= 7 passed, 1 skipped in 3s =", 0), ("Killed", 137)]
    arguments = []
    for place, (output, status) in enumerate(outputs):
        (tmp_path / str(place)).write_text(output + "\n")
        arguments += [str(tmp_path / str(place)), str(status)]
    assert run("summary.sh", "3", "1", "60", *arguments).stdout == (
        "===== 3 failed, 15 passed, 1 skipped, 1 error in 60s =====\n"
    )
