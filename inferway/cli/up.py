"""`python -m inferway up`: the whole mesh on this machine, from one terminal."""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from inferway.cli import local_file, probe
from inferway.cli.core import local_mesh
from inferway.cli.core.supervisor import Failure, Supervisor
from inferway.cli.local_file import LocalMesh
from inferway.cli.ports import PortError, free_ports, require_port
from inferway.cli.processes import GivenUp, ProcessGroup, Served, StopAsked, last_lines
from inferway.config import load_or_exit, option

_CHECKOUT = Path(__file__).resolve().parents[2]
_PROBE_EVERY_S = 0.1
# Silence after which somebody at a terminal wonders.
_STILL_WAITING_EVERY_S = 15.0


@dataclass(frozen=True, slots=True)
class UpConfig:
    """Start workers, a router and a gateway on this machine and keep them running until Ctrl-C."""

    port: int = option(
        local_mesh.PUBLIC_PORT, "port for clients, on 127.0.0.1; 0 picks a free one", minimum=0, maximum=65535
    )
    engine: str = option(
        "llamacpp",
        "what is served: a small chat model and, by a second worker, an embedding model; or scripts",
        choices=("llamacpp", "scripted"),
    )
    scripts: str = option("", "file of scripts for --engine scripted; without it the engine echoes")
    front: str = option(
        local_mesh.NO_FRONT, "proxy between clients and the gateway (docs/front.md)", choices=local_mesh.FRONTS
    )
    processes: int = option(1, "gateway processes on the port", minimum=1, maximum=64)
    ready_timeout_s: float = option(300.0, "give up when nothing is served after this time", unit="s", minimum=1)
    verbose: bool = option(False, "print where the logs of the processes are")
    log_level: str = option("info", "least severe level in those logs", choices=("debug", "info", "warning", "error"))


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    """Returns 0 when it was asked to stop, 1 when something could not be started."""
    config = load_or_exit(UpConfig, "up", environ, argv, prog="python -m inferway up")
    if config.scripts:
        # The path is relative to the caller; the worker runs elsewhere.
        config = replace(config, scripts=str(Path(config.scripts).resolve()))
    any_ports = dict.fromkeys(local_mesh.INNER_PORTS, 0)
    for tries_left, wanted in ((2, local_mesh.INNER_PORTS), (1, any_ports), (0, any_ports)):
        try:
            # The public one first, which has no other choice.
            public = require_port(config.port)
            ports = free_ports(local_mesh.beside(public, wanted)) | {"public": public}
        except PortError as error:
            say(str(error))
            return 1
        logs = Path(tempfile.mkdtemp(prefix="inferway-"))
        failure = asyncio.run(run(config, ports, environ, logs))
        if failure is None:
            if not config.verbose:
                shutil.rmtree(logs, ignore_errors=True)
            return 0
        lines = last_lines(logs, failure.name)
        if not (tries_left and local_mesh.is_about_ports(lines, ports)):
            explain(failure, lines, logs)
            break
        # Between the look at the ports and their use, another program took one.
        say(f"{lines[-1]}; trying other ports")
    return 1


async def run(config: UpConfig, ports: Mapping[str, int], environ: Mapping[str, str], logs: Path) -> Failure | None:
    """Until a signal ends it, or something cannot be started: that is returned."""
    with_embeddings = config.engine == "llamacpp" and embeds()
    children = local_mesh.children(
        ports,
        engine=config.engine,
        scripts=config.scripts,
        with_embeddings=with_embeddings,
        processes=config.processes,
        log_level=config.log_level,
        front=config.front,
        front_files=str(logs / "front"),
    )
    started = asyncio.Event()
    token, admin_token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    group = ProcessGroup(
        Supervisor(tuple(children)),
        {name: (sys.executable, "-m", child.module, *child.arguments) for name, child in children.items()},
        directory=_CHECKOUT,
        environ=local_mesh.environment(environ, token, admin_token),
        logs=logs,
        say=say,
        on_start=lambda name: started.set(),
    )
    stop_on_signals(group)
    say(f"starting {', '.join(children)}" + (f"; their logs are in {logs}" if config.verbose else ""))
    router, admin = (f"{local_mesh.LOOPBACK}:{ports[role]}" for role in ("router", "admin"))
    found_by_others = local_file.written(environ, LocalMesh(router, token, admin, admin_token))
    async with asyncio.TaskGroup() as tasks:
        models = 2 if with_embeddings else 1
        watch = tasks.create_task(watch_readiness(config, ports, models, group, started))
        with found_by_others:
            failure = await group.run()
        watch.cancel()
    if failure is None:
        say("stopped")
    return failure


def embeds() -> bool:
    """Whether the embedding model is installed; if not, that is said."""
    spec = importlib.util.find_spec(local_mesh.EMBEDDING_PACKAGE)
    if spec is not None and spec.submodule_search_locations:
        return True
    say(f"no embeddings: the package {local_mesh.EMBEDDING_DISTRIBUTION} is not installed ('make setup-run' brings it)")
    return False


def stop_on_signals(group: ProcessGroup) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue  # nohup: it is to outlive the terminal
        loop.add_signal_handler(number, group.tell, StopAsked())


async def watch_readiness(
    config: UpConfig, ports: Mapping[str, int], models: int, group: ProcessGroup, started: asyncio.Event
) -> None:
    """Greets when that many models are served, and says so again each time that a process had to be started again."""
    # Not of the proxy in front, which keeps readiness to itself.
    port = ports[local_mesh.gateway_port(config.front)]
    if not await becomes_ready(port, models, limit_s=config.ready_timeout_s):
        served = await served_models(port)
        missing = "no model was" if served == local_mesh.Models() else "not every model was"
        sentence = f"{missing} served after {config.ready_timeout_s:g} s; {await why_not_ready(port)}"
        group.tell(GivenUp(Failure("embedding-worker" if served.chat else "worker", sentence)))
        return
    group.tell(Served())
    print(local_mesh.greeting(ports["public"], await served_models(port)), flush=True)
    started.clear()
    while True:
        await started.wait()
        started.clear()
        if await becomes_ready(port, models):
            say("serving again")


async def becomes_ready(port: int, models: int, *, limit_s: float | None = None) -> bool:
    """Wait for the gateway to say that at least so many models are served; False when the limit has passed."""
    begun = spoken = time.monotonic()
    while limit_s is None or time.monotonic() - begun < limit_s:
        answer = await probe.get(port, "/health/ready")
        if answer and answer.status == 200 and len(answer.get("models") or ()) >= models:
            return True
        if time.monotonic() - spoken >= _STILL_WAITING_EVERY_S:
            spoken = time.monotonic()
            say(f"still waiting for a model to be served ({spoken - begun:.0f} s)")
        await asyncio.sleep(_PROBE_EVERY_S)
    return False


async def why_not_ready(port: int) -> str:
    answer = await probe.get(port, "/health/ready")
    status = answer.get("status") if answer else None
    if answer and answer.status == 200:
        return f"the gateway has {', '.join(answer.get('models') or ())}"
    return f"the gateway says: {status}" if status else "the gateway does not answer"


async def served_models(port: int) -> local_mesh.Models:
    answer = await probe.get(port, "/v1/models")
    return local_mesh.first_models(answer.get("data") or ()) if answer else local_mesh.Models()


def explain(failure: Failure, lines: Sequence[str], logs: Path) -> None:
    said = "".join(f"\n  {line}" for line in lines) or " (it wrote nothing)"
    say(f"{failure.sentence}\nThe last lines of {failure.name}'s log:{said}\nAll logs are in {logs}")


def say(text: str) -> None:
    print(f"inferway: {text}", file=sys.stderr, flush=True)
