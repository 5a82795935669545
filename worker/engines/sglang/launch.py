"""Starts SGLang and ends it: everything here blocks, and runs in a thread."""

from __future__ import annotations

import argparse
import asyncio
import atexit
import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from typing import Any, NoReturn

from inferway.errors import invalid

from . import cpu
from .children import Children, spawned
from .options import PAGE_SIZE, Options, arguments

# Flags that would take away what the engine relies on, with the value that they must have.
# With --dcp-size a block of the KV events has several pages.
_FIXED = {"skip_tokenizer_init": False, "tokenizer_worker_num": 1, "node_rank": 0, "dcp_size": 1}


class Sglang:
    """A running SGLang.

    `manager` is its TokenizerManager, the way in; it belongs to the loop that first uses it. `settings` has the values
    of its flags as they are in effect, by field.
    """

    def __init__(self, engine: Any, children: Children) -> None:
        self.settings: dict[str, Any] = engine.server_args.resolved_dict()
        self.manager: Any = engine.tokenizer_manager
        self.children = children
        self.scheduler_info: dict[str, Any] = engine._scheduler_init_result.scheduler_infos[0]
        self._engine = engine

    def loads(self) -> list[Any]:
        """The newest load of each scheduler; some microseconds, from shared memory."""
        loads: list[Any] = self.manager.load_snapshot_reader.read_all()
        return loads

    def max_running(self) -> int:
        """Requests that fit into a batch: fewer than asked for where memory is short. Known once anything has run."""
        return sum(load.max_running_requests for load in self.loads())

    def end(self) -> None:
        """Kill its processes, and remove the files that they leave behind."""
        from sglang.srt.managers.load_snapshot import shm_path_for

        self.children.end()
        manager, ports = self.manager, self._engine.port_args
        manager.load_snapshot_reader.close()
        files = [name.removeprefix("ipc://") for name in vars(ports).values() if str(name).startswith("ipc://")]
        for file in (shm_path_for(ports.instance_id), *files):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file)

    def close_sockets(self) -> None:
        """On the loop that used them, after `end`."""
        for socket in (self.manager.recv_from_detokenizer, self.manager.send_to_scheduler, self._engine.send_to_rpc):
            if socket is not None:
                socket.close(linger=0)


def launch(options: Options, events: str) -> Sglang:
    """Load the model; minutes. `events` is an empty folder for the KV-event sockets.

    Raises ApiError for flags that SGLang does not take, OSError when it cannot be started.
    """
    on_cpu = cpu.is_needed(options.flags)
    if on_cpu:
        cpu.prepare()
    # Log-probabilities before temperature, as everybody else means them; SGLang's own default is behind it.
    os.environ["SGLANG_RETURN_ORIGINAL_LOGPROB"] = "1"
    with _own_process():
        args = _parse(options, events, on_cpu)
        import sglang
        from sglang.srt.utils.watchdog import SubprocessWatchdog

        before = spawned()
        try:
            engine = sglang.Engine(server_args=args)
        except Exception as error:
            Children(spawned() - before).end()
            raise OSError(f"SGLang did not start: {_first_line(error)}") from error
    # SGLang would end all processes of this one at exit; those that it started are ended here.
    atexit.unregister(engine.shutdown)
    watchdog = engine.tokenizer_manager._subprocess_watchdog
    assert isinstance(watchdog, SubprocessWatchdog)
    watchdog.stop()  # it would signal this process; Children see an end at once
    return Sglang(engine, Children(spawned() - before))


def interrupt() -> None:
    """Let a launch that is under way fail soon."""
    Children(spawned()).end()


def remove_folder(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _parse(options: Options, events: str, on_cpu: bool) -> Any:
    from sglang.srt.server_args import ServerArgs, prepare_server_args

    parser = _Parser(prog="sglang", add_help=False, allow_abbrev=True)
    ServerArgs.add_cli_args(parser)
    given = parser.parse_args([*options.flags, f"--model-path={options.model_path}"])
    argv = arguments(
        options,
        cpu_flags=cpu.flags(max_running=options.max_running, page_size=PAGE_SIZE) if on_cpu else (),
        max_total_tokens=cpu.MAX_TOTAL_TOKENS if on_cpu else None,
        # SGLang knows no local sockets for several ranks, and their caches would be told apart by nobody.
        events=events if given.dp_size == given.attn_dp_size == 1 else "",
    )
    try:
        args = prepare_server_args(argv)
    except (ValueError, AssertionError, TypeError) as error:
        raise invalid(None, f"SGLang does not take these flags: {_first_line(error)}") from error
    for name, value in _FIXED.items():
        if (given := getattr(args, name)) != value:
            flag = "--" + name.replace("_", "-")
            raise invalid(None, f"SGLang's {flag} must be {value} in a worker, got {given}.")
    return args


class _Parser(argparse.ArgumentParser):
    """Speaks instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise invalid(None, f"SGLang does not take the flags after '--': {message}")


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


@contextlib.contextmanager
def _own_process() -> Iterator[None]:
    """SGLang sets the root logger and the event-loop policy for itself; this process keeps its own."""
    root, policy = logging.getLogger(), asyncio.get_event_loop_policy()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        asyncio.set_event_loop_policy(policy)
