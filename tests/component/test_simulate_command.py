"""`python -m inferway simulate` as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.support.processes import ROOT


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A Mooncake trace of conversations that grow, crowded enough for queues and ties."""
    rng, path, records = Random(3), tmp_path / "trace.jsonl", []
    for number in range(120):
        blocks = [100 * rng.randrange(8) + block for block in range(rng.randrange(1, 9))]
        prompt = 512 * len(blocks) - rng.randrange(500)
        answer = rng.randrange(1, 200)
        records.append({"timestamp": 100 * number, "input_length": prompt, "output_length": answer, "hash_ids": blocks})
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def simulate(*args: str, hash_seed: str = "0", cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "inferway", "simulate", *args]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=100)


def test_json_is_the_same_for_the_same_seed(trace: Path) -> None:
    """A line for each policy, whatever order the interpreter gives its sets; another seed may differ."""
    flags = ("--trace", str(trace), "--policy", "default,random", "--workers", "3", "--speed", "4", "--json")
    first, second = (simulate(*flags, "--seed", "5", hash_seed=seed) for seed in ("0", "4242"))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    lines = [json.loads(line) for line in first.stdout.splitlines()]
    assert [(line["policy"], line["seed"], line["speed"], line["requests"]) for line in lines] == [
        ("default", 5, 4.0, 120),
        ("random", 5, 4.0, 120),
    ]
    assert lines[0]["hit_ratio"] > lines[1]["hit_ratio"]
    third = simulate(*flags, "--seed", "6")
    assert third.stdout != first.stdout


def test_the_table_and_the_picture(trace: Path, tmp_path: Path) -> None:
    """Paths are the caller's; the table goes to standard output and nothing else does."""
    done = simulate("--trace", trace.name, "--requests", "50", "--plot", "ttft.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("50 requests in 5 s (speed 1): ")
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("default ")]
    assert len(row) == 12
    assert (tmp_path / "ttft.svg").read_text().startswith("<svg ")


def test_a_load_instead_of_a_speed(trace: Path) -> None:
    """The speed is that share of what round robin carries, which it just carries."""
    flags = (
        "--trace",
        str(trace),
        "--workers",
        "2",
        "--policy",
        "round_robin",
        "--prefill-tokens-per-s",
        "4000",
        "--json",
    )
    full, half = (json.loads(simulate(*flags, "--load", load).stdout) for load in ("1", "0.5"))
    assert full["round_robin_speed"] == half["round_robin_speed"] == full["speed"]
    assert half["speed"] == pytest.approx(full["speed"] / 2, abs=1e-5)
    prompts = [json.loads(line)["input_length"] for line in trace.read_text().splitlines()]
    bound_s = 10 * (sum(prompts) / len(prompts) / 4000 + 0.010)
    assert 0.5 * bound_s < full["ttft_mean_s"] <= bound_s
    assert half["ttft_mean_s"] < full["ttft_mean_s"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "simulate: --trace: a file is needed"),
        (("--trace", "x", "--speed", "1", "--load", "1"), "simulate: --speed and --load cannot be given together"),
        (("--trace", "x", "--policy", "best"), "simulate: --policy: must be the name of a policy: there is no policy"),
        (("--trace", "no/such/file"), "simulate: [Errno 2] No such file or directory: 'no/such/file'"),
        (("--trace", "README.md"), "simulate: README.md: line 1 is no JSON"),
    ],
)
def test_mistakes(flags: tuple[str, ...], sentence: str) -> None:
    """A sentence on standard error and status 2."""
    done = simulate(*flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
