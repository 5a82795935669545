"""A real worker with the scripted engine in the test's own process, and a gateway's end of a session with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from tokenizers import Tokenizer

from inferway.api.v1 import worker_pb2, worker_pb2_grpc
from inferway.grpc_util import channel
from worker.app import App
from worker.config import Config

LIMIT_S = 20.0
SCRIPTS: dict[str, Any] = {
    "hello": [{"text": "Hel"}, {"text": "lo"}, {"finish": "stop", "usage": {"prompt": 5, "completion": 2}}],
    "split": [{"bytes": "20c5"}, {"bytes": "a1"}, {"text": "íp"}, {"finish": "stop"}],
    "stop": [{"text": "a"}, {"text": " EN"}, {"text": "D"}, {"sleep_ms": 600000}, {"text": " more"}],
    "held": [{"text": "ONE TWO"}, {"text": " THREE"}, {"finish": "stop"}],
    "never": [{"sleep_ms": 600000}],
    "drip": [{"text": "t", "repeat": 10000, "gap_ms": 5}, {"finish": "length"}],
    "big": [{"text": "x" * 100_000, "repeat": 60}, {"finish": "stop"}],
    "broken": [{"text": "par"}, {"grpc_error": {"code": "INTERNAL", "details": "oom at layer 12"}}],
    "full": [{"grpc_error": {"code": "RESOURCE_EXHAUSTED", "details": "queue full"}}],
    "lost": [{"text": "par"}, {"eof": True}],
    "loose": [{"capability": {"grammar": False}}, {"text": "x"}, {"finish": "stop"}],
    "short": [{"sleep_ms": 300}, {"text": "done"}, {"finish": "stop"}],
}


class Session:
    """A gateway's end of one session: collects what comes, by key."""

    def __init__(self, stub: Any, metadata: Any = ()) -> None:
        self._stream = stub.Session(metadata=metadata)
        self._moved = asyncio.Condition()
        self.batches: list[worker_pb2.StepBatch] = []
        self.deltas: dict[int, list[worker_pb2.Delta]] = {}
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for batch in self._stream:
            async with self._moved:
                self.batches.append(batch)
                for delta in batch.deltas:
                    self.deltas.setdefault(delta.key, []).append(delta)
                self._moved.notify_all()

    async def send(
        self,
        generates: Iterable[worker_pb2.Generate] = (),
        aborts: Iterable[int] = (),
        gateway_id: str = "g",
        *,
        abort_reasons: Mapping[int, str] | None = None,
        settled: Iterable[int] = (),
        orphans_booked: Iterable[int] = (),
    ) -> None:
        await self._stream.write(
            worker_pb2.SessionRequest(
                gateway_id=gateway_id,
                generates=generates,
                aborts=aborts,
                abort_reasons=abort_reasons,
                settled=settled,
                orphans_booked=orphans_booked,
            )
        )

    @property
    def orphans(self) -> list[worker_pb2.Orphan]:
        """All that were offered, in order."""
        return [orphan for batch in self.batches for orphan in batch.orphans]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S), self._moved:
            await self._moved.wait_for(condition)

    async def end_of(self, key: int) -> worker_pb2.Delta:
        """The last delta of a key."""
        await self.until(lambda: any(_is_last(delta) for delta in self.deltas.get(key, ())))
        assert _is_last(self.deltas[key][-1]), "nothing comes after the last delta"
        return self.deltas[key][-1]

    def text_of(self, key: int) -> str:
        return "".join(delta.text for delta in self.deltas.get(key, ()))

    async def closed(self) -> None:
        """Returns when the worker has ended the stream."""
        async with asyncio.timeout(LIMIT_S):
            await self._reader

    async def close(self) -> None:
        self._stream.cancel()
        await asyncio.wait({self._reader})
        if not self._reader.cancelled():
            self._reader.exception()


class Mesh:
    """One worker and a channel to it."""

    def __init__(self, app: App, stub: Any, link: grpc.aio.Channel) -> None:
        self.app = app
        self.stub = stub
        self.link = link
        self.tokenizers: dict[str, Tokenizer] = {}
        self._keys = iter(range(1, 1_000_000))

    def generate(self, request_id: str, *, prompt: str | list[int] = "", model: str = "m-text", **more: Any) -> Any:
        """A Generate with the next key; a text prompt is put into one user turn of ChatML."""
        ids = prompt if isinstance(prompt, list) else self.chat(prompt or "hi", model)
        return worker_pb2.Generate(
            key=next(self._keys), request_id=request_id, model=model, prompt_token_ids=ids, **more
        )

    def chat(self, text: str, model: str = "m-text") -> list[int]:
        if model not in self.tokenizers:
            self.tokenizers[model] = Tokenizer.from_str(
                self.app.runtime.served.find(model).info.tokenizer_json.decode()
            )
        rendered = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        ids: list[int] = self.tokenizers[model].encode(rendered, add_special_tokens=False).ids
        return ids


def _is_last(delta: worker_pb2.Delta) -> bool:
    return bool(delta.finish_reason) or delta.HasField("error")


@asynccontextmanager
async def running(tmp_path: Path, **options: Any) -> AsyncIterator[Mesh]:
    scripts = tmp_path / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS))
    config = Config(
        **{
            "engine": "scripted",
            "listen": "127.0.0.1:0",
            "ops_listen": "127.0.0.1:0",
            "scripts": str(scripts),
            "record": str(tmp_path / "record.jsonl"),
            **options,
        }
    )
    app = App(config)
    link = None
    try:
        await app.listen()
        await app.load()
        link = channel(app.address)
        yield Mesh(app, worker_pb2_grpc.WorkerStub(link), link)
    finally:
        if link is not None:
            await link.close()
        await app.close()
