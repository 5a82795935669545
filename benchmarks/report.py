"""What benchmarks share: CPU time of a process, and figures as a table and as JSON.

The JSON goes to benchmarks/results/local/, which is not committed.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).parent / "results" / "local"


def process_cpu_s(pid: int) -> float:
    """CPU seconds of a process with all its threads, in nanosecond steps: its clock as clock_getcpuclockid(3) makes it.

    Linux only.
    """
    return time.clock_gettime(~pid << 3 | 2)


def write_report(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print `rows` and keep them with the commit and the machine they were measured on."""
    print(f"\n{name}")
    columns = list(rows[0])
    widths = [max(len(column), *(len(str(row[column])) for row in rows)) for column in columns]
    for cells in (columns, *([str(row[column]) for column in columns] for row in rows)):
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))
    _RESULTS.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    report = {"name": name, "commit": commit.stdout.strip(), "machine": platform.platform(), "rows": rows}
    (_RESULTS / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n")
