"""The file by which commands find a mesh of this machine."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from inferway.cli.local_file import LocalMesh, read, written

MESH = LocalMesh("127.0.0.1:1", "token", "127.0.0.1:2", "admin token")


@pytest.fixture(params=["XDG_RUNTIME_DIR", "TMPDIR"])
def environ(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    return {request.param: str(tmp_path)}


def test_it_is_there_while_the_mesh_runs(environ: dict[str, str], tmp_path: Path) -> None:
    """Nobody else can read it, and nothing is left of it."""
    assert read(environ) is None
    with written(environ, MESH):
        assert read(environ) == MESH
        (folder,) = tmp_path.iterdir()
        (file,) = folder.iterdir()
        assert (stat.S_IMODE(folder.stat().st_mode), stat.S_IMODE(file.stat().st_mode)) == (0o700, 0o600)
    assert read(environ) is None
    assert list(tmp_path.iterdir()) == []


def test_the_newest_that_lives_is_found(environ: dict[str, str], tmp_path: Path) -> None:
    """A file whose process is gone says nothing, nor does one that is no mesh's."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with written(environ, MESH):
        (folder,) = tmp_path.iterdir()
        for name, text in (
            (str(gone.pid), json.dumps(MESH._replace(router="gone:1")._asdict())),
            (str(os.getppid()), "no json"),
            ("notes", "{}"),
        ):
            (folder / f"{name}.json").write_text(text)
        assert read(environ) == MESH
    assert folder.exists()


def test_a_folder_that_others_can_write_is_not_trusted(environ: dict[str, str], tmp_path: Path) -> None:
    """Neither written to nor read from; the mesh runs all the same."""
    with written(environ, MESH):
        (folder,) = tmp_path.iterdir()
        folder.chmod(0o777)
        assert read(environ) is None
        with written(environ, MESH._replace(router="other:1")):
            pass
        folder.chmod(0o700)
        assert read(environ) == MESH
