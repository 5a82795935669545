"""Asks the routers of a mesh, for commands that show what they know."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from inferway.api.v1 import router_pb2_grpc
from inferway.cli import local_file
from inferway.cli.core.local_mesh import INNER_PORTS, LOOPBACK
from inferway.config import Secret, option
from inferway.grpc_util import InternalToken, channel
from inferway.net import host_and_port

TIMEOUT_S = 5.0
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """What every command has that asks routers; each adds its own."""

    routers: tuple[str, ...] = option(
        (),
        "gRPC addresses of routers, comma-separated: all of the mesh",
        check=host_and_port,
        default_text="that of `make run`",
    )
    json: bool = option(False, "print JSON instead of text")
    internal_token: Secret = option(Secret(""), "shared secret of the mesh", env="INFERWAY_INTERNAL_TOKEN")
    internal_token_file: str = option("", "file with that secret", env="INFERWAY_INTERNAL_TOKEN_FILE")


class Mesh(NamedTuple):
    """Whom to ask, and with what token."""

    routers: Sequence[str]
    token: InternalToken


@dataclass(frozen=True, slots=True)
class Answer(Generic[M]):
    """`message` None: the router did not answer."""

    router: str
    message: M | None


def subject_first(argv: Sequence[str]) -> tuple[str, Sequence[str]]:
    """What a command is about, which stands before all flags (empty: it does not), and the rest."""
    return ("", argv) if not argv or argv[0].startswith("-") else (argv[0], argv[1:])


def mesh(environ: Mapping[str, str], options: RouterOptions) -> Mesh:
    """The routers named, or without any those of the mesh that runs on this machine."""
    given = InternalToken(options.internal_token, options.internal_token_file)
    if options.routers:
        return Mesh(options.routers, given)
    local = local_file.read(environ)
    if local is None:
        return Mesh((f"{LOOPBACK}:{INNER_PORTS['router']}",), given)
    return Mesh((local.router,), InternalToken(local.token))


def ask(command: str, target: Mesh, call: Callable[[router_pb2_grpc.RouterStub, Any], Awaitable[M]]) -> list[Answer[M]]:
    """The answers of all routers, in order; `call` gets a stub and the metadata. Standard error says who gave none."""

    async def one(router: str) -> Answer[M]:
        opened = channel(router)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return Answer(router, await call(router_pb2_grpc.RouterStub(opened), target.token.metadata()))
        except grpc.aio.AioRpcError as error:
            problem = error.details()
        except TimeoutError:
            problem = f"no answer in {TIMEOUT_S:g} s"
        finally:
            await opened.close(None)
        print(f"{command}: {router}: {problem}", file=sys.stderr)
        return Answer(router, None)

    async def all_of_them() -> list[Answer[M]]:
        return list(await asyncio.gather(*(one(router) for router in target.routers)))

    return asyncio.run(all_of_them())
