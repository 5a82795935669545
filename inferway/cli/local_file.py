"""Where a mesh that `make run` has started is found by other commands of the same user: a file only they can read."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class LocalMesh(NamedTuple):
    """The router's gRPC address and the token of the mesh's streams; the port for admins and its token."""

    router: str
    token: str
    admin: str = ""
    admin_token: str = ""


@contextlib.contextmanager
def written(environ: Mapping[str, str], mesh: LocalMesh) -> Iterator[None]:
    """Meanwhile `read` finds this mesh of this process. Where there is no place for the file nothing is written."""
    path = None
    with contextlib.suppress(OSError):
        path = _folder(environ, make=True) / f"{os.getpid()}.json"
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(mesh._asdict(), file)
    try:
        yield
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()
                path.parent.rmdir()


def read(environ: Mapping[str, str]) -> LocalMesh | None:
    """Of the meshes that run here, the one that came last; None without any."""
    try:
        newest_first = sorted(_folder(environ, make=False).glob("*.json"), key=_written_at, reverse=True)
    except OSError:
        return None
    for path in newest_first:
        try:
            os.kill(int(path.stem), 0)
            found = json.loads(path.read_text())
            admin = (str(found.get(name, "")) for name in ("admin", "admin_token"))
            return LocalMesh(str(found["router"]), str(found["token"]), *admin)
        except (OSError, ValueError, LookupError, TypeError):
            continue  # its process is gone, or it is no file of ours
    return None


def _written_at(path: Path) -> int:
    return path.stat().st_mtime_ns


def _folder(environ: Mapping[str, str], *, make: bool) -> Path:
    """A folder that belongs to this user alone. Raises OSError when somebody else could have made it."""
    base = environ.get("XDG_RUNTIME_DIR") or environ.get("TMPDIR") or tempfile.gettempdir()
    folder = Path(base) / f"inferway-of-{os.getuid()}"
    if make:
        folder.mkdir(mode=0o700, exist_ok=True)
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
        raise PermissionError(f"{folder} does not belong to this user alone")
    return folder
