"""`python -m inferway adapters`: list, load and unload LoRA adapters on running workers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

from inferway.api.v1 import worker_pb2, worker_pb2_grpc
from inferway.config import Secret, load_or_exit, option
from inferway.grpc_util import InternalToken, channel
from inferway.net import host_and_port

_LIST_TIMEOUT_S = 10.0
# An adapter of many gigabytes comes from a slow disk.
_CHANGE_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class AdaptersConfig:
    """List the LoRA adapters of workers, or load or unload one on each of them."""

    worker: tuple[str, ...] = option((), "gRPC address of a worker, host:port; repeatable", check=host_and_port)
    model: str = option("", "model that the adapter is for", default_text="the only one that takes adapters")
    load: str = option("", "load an adapter: NAME=FOLDER, a folder on the worker's machine")
    unload: str = option("", "unload the adapter of this name")
    internal_token: Secret = option(Secret(""), "shared secret of the mesh", env="INFERWAY_INTERNAL_TOKEN")
    internal_token_file: str = option("", "file with that secret", env="INFERWAY_INTERNAL_TOKEN_FILE")


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    """Returns 0 when every worker did what was asked, 1 when one did not, 2 for a wrong command line."""
    config = load_or_exit(AdaptersConfig, "adapters", environ, argv, prog="python -m inferway adapters")
    name, separator, folder = config.load.partition("=")
    mistake = ""
    if not config.worker:
        mistake = "--worker: at least one address is needed"
    elif config.load and config.unload:
        mistake = "--load and --unload cannot be given together"
    elif config.load and not (separator and name and folder):
        mistake = f"--load: must be NAME=FOLDER, got {config.load!r}"
    if mistake:
        print(f"adapters: {mistake}", file=sys.stderr)
        return 2
    return asyncio.run(_run(config, name, folder))


async def _run(config: AdaptersConfig, name: str, folder: str) -> int:
    token = InternalToken(config.internal_token, config.internal_token_file)
    failed = False
    for address in config.worker:
        worker = _Worker(address, token)
        try:
            if config.load:
                await worker.load(await worker.model(config.model), name, folder)
            elif config.unload:
                await worker.unload(await worker.model(config.model), config.unload)
            for adapter in await worker.adapters():
                print(f"{address} {adapter}")
        except grpc.aio.AioRpcError as error:
            failed = True
            print(f"adapters: {address}: {error.details()}", file=sys.stderr)
        except LookupError as error:
            failed = True
            print(f"adapters: {address}: {error.args[0]}", file=sys.stderr)
        finally:
            await worker.close()
    return 1 if failed else 0


class _Worker:
    def __init__(self, address: str, token: InternalToken) -> None:
        self._channel = channel(address)
        self._stub = worker_pb2_grpc.WorkerStub(self._channel)
        self._metadata = token.metadata()

    async def model(self, wanted: str) -> str:
        """The model to change. Raises LookupError when none is named and there is not exactly one."""
        able = [model.name for model in await self._models() if "adapter" in model.capabilities]
        if wanted or len(able) == 1:
            return wanted or able[0]
        raise LookupError(f"--model is needed: models that take adapters are {', '.join(able) or 'none'}")

    async def adapters(self) -> list[str]:
        return [model.name for model in await self._models() if model.parent]

    async def load(self, model: str, adapter: str, path: str) -> None:
        order = worker_pb2.LoadAdapterRequest(model=model, adapter=adapter, path=path)
        await self._stub.LoadAdapter(order, metadata=self._metadata, timeout=_CHANGE_TIMEOUT_S)

    async def unload(self, model: str, adapter: str) -> None:
        order = worker_pb2.UnloadAdapterRequest(model=model, adapter=adapter)
        await self._stub.UnloadAdapter(order, metadata=self._metadata, timeout=_CHANGE_TIMEOUT_S)

    async def close(self) -> None:
        await self._channel.close(None)

    async def _models(self) -> Sequence[worker_pb2.Model]:
        request = worker_pb2.DescribeRequest()
        described: worker_pb2.DescribeResponse = await self._stub.Describe(
            request, metadata=self._metadata, timeout=_LIST_TIMEOUT_S
        )
        return described.models
