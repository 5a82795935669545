"""Requests for embeddings: as many inputs at a time as the engine runs choices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite

from inferway.errors import OK, ApiError, Reason
from inferway.lifecycle import gather_or_fail

from .core.admission import check_embed
from .core.served import ServedModels
from .core.trace import ChoiceEnd
from .engine import EmbedRequest, Engine, EngineInfo
from .metrics import WorkerMetrics
from .occupancy import Occupancy
from .tracing import ChoiceTraces


class Embeddings:
    def __init__(
        self,
        engine: Engine,
        check_open: Callable[[], EngineInfo],
        served: ServedModels,
        occupancy: Occupancy,
        clock: Callable[[], float],
        metrics: WorkerMetrics,
        traces: ChoiceTraces | None,
    ) -> None:
        self._engine = engine
        self._check_open = check_open
        self._served = served
        self._occupancy = occupancy
        self._clock = clock
        self._metrics = metrics
        self._traces = traces
        self._slots = asyncio.Semaphore(1)
        self._engine_name = ""

    def start(self, info: EngineInfo) -> None:
        """The engine is loaded."""
        self._engine_name = info.name
        self._slots = asyncio.Semaphore(info.max_running)

    async def compute(self, requests: Sequence[EmbedRequest], lease_id: int) -> list[Sequence[float]]:
        """The embeddings of all inputs of one request; cancelling it frees what it holds. Raises ApiError."""
        started, outcome = self._clock(), Reason.CLIENT_CLOSED_REQUEST.label
        self._occupancy.begin(lease_id)
        try:
            self._check_open()
            requests = [self._checked(request) for request in requests]
            vectors = await gather_or_fail(self._embed(request) for request in requests)
            outcome = OK
        except ApiError as error:
            outcome = error.reason.label
            self._metrics.outcomes[outcome] += 1
            raise
        except Exception:
            outcome = Reason.INTERNAL_ERROR.label
            raise
        finally:
            self._occupancy.end(lease_id)
            if self._traces is not None and requests:
                self._trace(self._traces, requests, lease_id, outcome, started)
        self._metrics.outcomes[OK] += 1
        for request in requests:
            self._metrics.prompt_tokens[request.model] += len(request.prompt_token_ids)
        return vectors

    def _checked(self, request: EmbedRequest) -> EmbedRequest:
        served = self._served.find(request.model)
        check_embed(request, served.info)
        return replace(request, model=served.model, adapter=served.adapter)

    async def _embed(self, request: EmbedRequest) -> Sequence[float]:
        async with self._slots:
            vector = await self._engine.embed(request)
        if not all(map(isfinite, vector)):
            raise ApiError(Reason.WORKER_FAILED, "The engine computed an embedding with values that are no numbers.")
        return vector

    def _trace(
        self, traces: ChoiceTraces, requests: Sequence[EmbedRequest], lease_id: int, outcome: str, started: float
    ) -> None:
        end = ChoiceEnd(
            request_id=requests[0].request_id,
            model=requests[0].model[:200],
            engine=self._engine_name,
            choice_index=0,
            lease_id=lease_id,
            started=started,
            prefill=0.0,
            first_token=0.0,
            ended=self._clock(),
            outcome=outcome,
            prompt_tokens=sum(len(request.prompt_token_ids) for request in requests),
            is_embedding=True,
        )
        traces.ended(requests[0].traceparent, end)
