"""Settlements on disk: order, torn and damaged files, full and failing disks, and who holds what."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.quota.spool import Spool, Spooled
from tests.support.processes import ROOT
from tests.support.settlements import settlement

MAX_BYTES = 1 << 20


def some(first: int, count: int) -> list[Spooled]:
    return [Spooled("acme", settlement(f"r-{number}"), 1000 + number) for number in range(first, first + count)]


def drained(spool: Spool, most: int = 7) -> list[Spooled]:
    """All that is in it, booked."""
    found: list[Spooled] = []
    while head := spool.head(most):
        found += head
        spool.done()
    assert spool.is_empty
    return found


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.spool"))


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    found = Spool(tmp_path, "gw", MAX_BYTES)
    yield found
    found.close()


def test_what_is_kept_comes_back_in_order(spool: Spool, tmp_path: Path) -> None:
    """Everything of a settlement, once; and no file is left when all is booked."""
    assert spool.append(some(0, 10)) == 10
    assert [each.settlement for each in spool.head(3)] == [each.settlement for each in some(0, 3)]
    spool.done()
    assert spool.append(some(10, 5)) == 5
    assert drained(spool) == some(3, 12)
    assert files(tmp_path) == []
    assert spool.size_bytes == 0


def test_what_was_not_booked_comes_again(spool: Spool) -> None:
    """The head stays the head until it is done."""
    spool.append(some(0, 4))
    assert spool.head(2) == spool.head(2) == some(0, 2)
    assert drained(spool) == some(0, 4)


def test_a_process_finds_what_another_has_left(spool: Spool, tmp_path: Path) -> None:
    """From where that one was; a file whose process lives is left to it; of two finders one has it."""
    spool.append(some(0, 6))
    spool.head(2)
    spool.done()
    others = [Spool(tmp_path, f"other-{number}", MAX_BYTES) for number in range(2)]
    assert [other.adopt() for other in others] == [0, 0]
    spool.close()
    assert [other.adopt() for other in others] == [1, 0]
    others[0].append(some(6, 2))
    assert drained(others[0]) == some(2, 6)
    assert [other.adopt() for other in others] == [0, 0]
    for other in others:
        other.close()


def test_the_oldest_are_not_dropped_for_the_newest(tmp_path: Path) -> None:
    """Within its bound; what has been booked makes room."""
    spool = Spool(tmp_path, "gw", 4000)
    fitting = spool.append(some(0, 20))
    assert 3 < fitting < 20
    assert spool.size_bytes <= 4000
    assert spool.append(some(fitting, 1)) == 0
    assert drained(spool) == some(0, fitting)
    assert spool.append(some(fitting, 3)) == 3
    spool.close()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_file_cut_anywhere_has_what_stood_before(tmp_path: Path, data: st.DataObject) -> None:
    """A write that was torn takes its own settlements along, and nothing else; what is appended later is whole."""
    folder = tmp_path / "cut"
    shutil.rmtree(folder, ignore_errors=True)
    spool = Spool(folder, "gw", MAX_BYTES)
    spool.append(some(0, 5))
    spool.close()
    [path] = files(folder)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    other = Spool(folder, "other", MAX_BYTES)
    other.adopt()
    other.append(some(5, 2))
    assert drained(other) == some(0, whole[:cut].count(b"\n")) + some(5, 2)
    other.close()


def test_a_damaged_line_costs_itself_alone(spool: Spool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The others are booked, and it is told."""
    spool.append(some(0, 3))
    spool.close()
    [path] = files(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"acme", b"acmf", 1)
    path.write_bytes(b"".join(lines))
    other = Spool(tmp_path, "other", MAX_BYTES)
    other.adopt()
    assert [each.ended_ms for each in drained(other)] == [1000, 1002]
    assert "spool_line_damaged" in caplog.messages


def test_a_folder_that_goes_away_keeps_nothing_quietly(tmp_path: Path) -> None:
    """An open file that has been deleted is no place to keep anything; a folder that is back is."""
    folder = tmp_path / "volume"
    spool = Spool(folder, "gw", MAX_BYTES)
    spool.append(some(0, 1))
    shutil.rmtree(folder)
    folder.touch()
    with pytest.raises(OSError, match="volume"):
        spool.append(some(1, 1))
    folder.unlink()
    folder.mkdir()
    assert spool.append(some(1, 1)) == 1
    assert len(files(folder)) == 1
    # What had been there before is still in the open file.
    assert drained(spool) == some(0, 2)
    spool.close()


_FULL_DISK = """
import resource, sys
from pathlib import Path
from gateway.quota.spool import Spool
from tests.component.test_spool import some

spool = Spool(Path(sys.argv[1]), "full", 1 << 20)
assert spool.append(some(0, 3)) == 3
resource.setrlimit(resource.RLIMIT_FSIZE, (spool.size_bytes + 500, resource.RLIM_INFINITY))
try:
    spool.append(some(3, 40))
except OSError as error:
    print(type(error).__name__, error.errno)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert spool.append(some(3, 2)) == 2
"""


def test_a_write_that_fails_half_way_is_none(tmp_path: Path) -> None:
    """On a disk that takes 500 bytes more nothing is kept of what did not fit, and what comes later is whole."""
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"OSError {errno.EFBIG}\n"), done.stderr
    spool = Spool(tmp_path, "next", MAX_BYTES)
    assert spool.adopt() == 1 + 1
    assert drained(spool) == some(0, 5)
    spool.close()


_WRITER = """
import sys
from pathlib import Path
from gateway.quota.spool import Spool
from tests.component.test_spool import some

spool = Spool(Path(sys.argv[1]), f"writer-{sys.argv[2]}", 64 << 20)
number = int(sys.argv[2])
while True:
    assert spool.append(some(number, 5)) == 5
    number += 5
    print(number, flush=True)
"""


def test_what_a_killed_process_has_told_is_there(tmp_path: Path) -> None:
    """kill -9 in the middle of writing, twice: all that it said is on disk, in order, once."""
    told: list[range] = []
    for _ in range(2):
        first = told[-1].stop + 100 if told else 0
        command = [sys.executable, "-c", _WRITER, str(tmp_path), str(first)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            last = [int(writer.stdout.readline()) for _ in range(20)][-1]
            writer.kill()
            rest = [int(line) for line in writer.stdout.read().split()]
        told.append(range(first, (rest or [last])[-1]))
    spool = Spool(tmp_path, "next", MAX_BYTES)
    assert spool.adopt() == 2
    found = [int(each.settlement.reservation_id.removeprefix("r-")) for each in drained(spool, 100)]
    assert found == sorted(set(found))
    for numbers in told:
        # The write that was going on when it was killed may be whole, too.
        mine = [number for number in found if numbers.start <= number < numbers.stop + 5]
        assert mine[: len(numbers)] == list(numbers)
    spool.close()
