"""python -m benchmarks [NAME...]: these benchmarks, all if none is named, each in a process of its own.

Options go to one alone: python -m benchmarks.delivery --streams 8
"""

from __future__ import annotations

import argparse
import subprocess
import sys

BENCHMARKS = (
    "token_path",
    "tool_path",
    "request_path",
    "tracing",
    "ledger",
    "tokenizing",
    "lookups",
    "decisions",
    "hop",
    "quota",
    "delivery",
    "interference",
    "cpu_engine",
    "embeddings",
    "sglang_worker",
)


def main() -> None:
    """Exits with status 1 when one of them failed; the others run all the same."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measured figures of the mesh.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="one of " + ", ".join(BENCHMARKS))
    names = parser.parse_args().names or BENCHMARKS
    for name in names:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    failed = [name for name in names if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"]).returncode]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
