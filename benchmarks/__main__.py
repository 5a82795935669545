"""python -m benchmarks: every benchmark, one after the other."""

from __future__ import annotations

from benchmarks import delivery, interference, token_path
from benchmarks.report import write_report


def main() -> None:
    write_report("token_path", [token_path.measure(streams, 128, repeats=3) for streams in (256, 32)])
    write_report("delivery", delivery.measure(64))
    write_report("interference", interference.measure(10_000, 1_000, rounds=3))


if __name__ == "__main__":
    main()
