"""The connection to one worker: what it is (Describe) and how it fares (Watch). Protobuf ends here."""

from __future__ import annotations

from collections.abc import AsyncIterator

from inferway import grpc_util
from inferway.api.v1 import worker_pb2, worker_pb2_grpc
from inferway.blocks import BlocksRemoved, BlocksStored, CacheCleared, KvEvent

from .core.messages import Report, WorkerInfo

# A worker that accepts connections but does not answer counts as away.
_DESCRIBE_TIMEOUT_S = 5.0
_CORDON_TIMEOUT_S = 2.0


class WorkerContractError(Exception):
    """The worker answered with something that the contract rules out."""


class WorkerClient:
    def __init__(self, address: str, token: grpc_util.InternalToken) -> None:
        self.address = address
        self._token = token
        self._channel = grpc_util.channel(address)
        self._stub = worker_pb2_grpc.WorkerStub(self._channel)

    async def describe(self, *, patient: bool = True) -> WorkerInfo:
        """Ask the worker what it is. Raises grpc.RpcError, and WorkerContractError.

        `patient` waits for the connection, which lets a worker that comes up be met by the channel's own retry, without
        adding ours. Otherwise it fails when nobody listens.
        """
        response = await self._stub.Describe(
            worker_pb2.DescribeRequest(),
            timeout=_DESCRIBE_TIMEOUT_S,
            wait_for_ready=patient,
            metadata=self._token.metadata(),
        )
        return worker_info(response, self.address)

    async def watch(self, router_id: str) -> AsyncIterator[Report]:
        """The worker's reports until its stream ends. Raises grpc.RpcError."""
        call = self._stub.Watch(worker_pb2.WatchRequest(router_id=router_id), metadata=self._token.metadata())
        try:
            async for report in call:
                yield _report(report)
        finally:
            call.cancel()

    async def cordon(self, cordoned: bool) -> None:
        """Have the worker remember that an operator has taken it out, or back. Raises grpc.RpcError."""
        request = worker_pb2.CordonRequest(cordoned=cordoned)
        await self._stub.Cordon(request, timeout=_CORDON_TIMEOUT_S, metadata=self._token.metadata())

    async def close(self) -> None:
        await self._channel.close(None)


def worker_info(response: worker_pb2.DescribeResponse, address: str) -> WorkerInfo:
    for claim, holds in (
        ("worker_id is empty", response.worker_id),
        ("instance_id is empty", response.instance_id),
        ("models is empty", response.models),
        ("max_running is 0, at least 1 is needed", response.max_running),
    ):
        if not holds:
            raise WorkerContractError(claim)
    for model in response.models:
        if not model.name or not model.block_size:
            raise WorkerContractError(f"model {model.name!r} has block_size {model.block_size}, at least 1 is needed")
    return WorkerInfo(
        worker_id=response.worker_id,
        instance_id=response.instance_id,
        address=address,
        models={model.name: model.block_size for model in response.models},
        max_running=response.max_running,
        max_waiting=response.max_waiting,
        kv_total_tokens=response.kv_total_tokens or None,
        prefill_tokens_per_s=_rate(response.prefill_tokens_per_s),
        publishes_kv_events=response.publishes_kv_events,
        models_version=response.models_version,
        is_cordoned=response.cordoned,
    )


def _report(report: worker_pb2.WorkerReport) -> Report:
    return Report(
        instance_id=report.instance_id,
        num_requests_running=report.num_requests_running,
        num_requests_waiting=report.num_requests_waiting,
        uncached_tokens_in_flight=report.uncached_tokens_in_flight,
        kv_used_tokens=report.kv_used_tokens,
        kv_total_tokens=report.kv_total_tokens or None,
        prefill_tokens_per_s=_rate(report.prefill_tokens_per_s),
        draining=report.draining,
        lease_ids=list(report.lease_ids),
        kv_events=[_kv_event(event) for event in report.kv_events],
        kv_event_seq=report.kv_event_seq,
        models_version=report.models_version,
    )


def _kv_event(event: worker_pb2.KvEvent) -> KvEvent:
    """An event of a kind that this version does not know counts as a cleared cache: never a wrong prediction."""
    match event.WhichOneof("event"):
        case "stored":
            return BlocksStored(event.model, list(event.stored.block_hashes))
        case "removed":
            return BlocksRemoved(event.model, list(event.removed.block_hashes))
        case _:
            return CacheCleared(event.model)


def _rate(tokens_per_s: float) -> float | None:
    """Zero is unknown; what is no positive number (NaN included) is no rate."""
    return tokens_per_s if 0 < tokens_per_s < float("inf") else None
