"""Options of the simulator."""

from __future__ import annotations

from dataclasses import dataclass

from inferway.config import option

from ..core.placement.policies import policy_named
from .engine import EngineSettings


def _policy(name: str) -> None:
    try:
        policy_named(name)
    except LookupError as error:
        raise ValueError(f"must be the name of a policy: {error.args[0]}") from None


@dataclass(frozen=True, slots=True)
class Config:
    """Plays a trace through the router's own core, on computed workers, and compares policies."""

    trace: str = option("", "file of requests: a Mooncake trace or a decision log of the router (docs/simulator.md)")
    policy: tuple[str, ...] = option(("default",), "policies to compare, comma-separated", check=_policy)
    workers: int = option(8, "workers in the fleet", minimum=1, maximum=4096)
    speed: float | None = option(
        None, "the trace comes so many times as fast as it was recorded", minimum=0.0001, default_text="1"
    )
    load: float | None = option(
        None,
        "choose the speed so that the load is this share of what round robin carries on this fleet",
        minimum=0.01,
        maximum=10,
    )
    requests: int | None = option(None, "requests of the trace to play, from its start", minimum=1, default_text="all")
    model: str = option("", "of a decision log: the model whose requests are played", default_text="the only one")
    seed: int = option(1, "start of the random numbers: same seed, same output", minimum=0)
    json: bool = option(False, "print a JSON object for each policy, a line each")
    plot: str = option("", "file that gets the distribution of times to first token as a picture, SVG")

    prefill_tokens_per_s: float = option(
        20_000.0, "worker: speed of the prompt pass", unit="tokens/s", minimum=1, maximum=1e9
    )
    step_ms: float = option(10.0, "worker: shortest time of a step", unit="ms", minimum=0.01)
    step_ms_per_request: float = option(
        0.1, "worker: time that each answer in the batch adds to a step", unit="ms", minimum=0
    )
    prefill_overlap: float = option(
        0.0,
        "worker: 0: a step takes the time of its prompt tokens and that of its answers; 1: the longer of both",
        minimum=0,
        maximum=1,
    )
    chunk_tokens: int = option(2048, "worker: prompt tokens in a step at most", unit="tokens", minimum=1)
    max_running: int = option(64, "worker: requests in the batch at most", minimum=1)
    kv_tokens: int = option(1_000_000, "worker: tokens that the KV cache holds", unit="tokens", minimum=64)
    block_size: int = option(64, "tokens in a block of the KV cache", unit="tokens", minimum=1, maximum=512)
    kv_events: bool = option(True, "worker: tell the router what enters and leaves the cache")
    report_ms: float = option(
        100.0,
        "worker: longest time between two reports while it computes; it also reports whatever begins or ends",
        unit="ms",
        minimum=1,
    )
    hop_ms: float = option(
        1.0, "time of a message between gateway, router and worker", unit="ms", minimum=0, maximum=10_000
    )
    queue_timeout_s: float | None = option(
        None, "requests leave the router's queue after this time", unit="s", minimum=0.001, default_text="never"
    )
    expected_tokens: int | None = option(
        None,
        "completion tokens that gateways tell the router to expect",
        unit="tokens",
        minimum=1,
        default_text="the 90th percentile of the trace",
    )

    def mistakes(self) -> list[str]:
        """What is wrong with options that are right by themselves."""
        found = []
        if not self.trace:
            found.append("--trace: a file is needed")
        if self.speed is not None and self.load is not None:
            found.append("--speed and --load cannot be given together")
        if self.kv_tokens < self.block_size:
            found.append(f"--kv-tokens: must hold a block of {self.block_size} tokens, got {self.kv_tokens}")
        return found

    def engine(self) -> EngineSettings:
        return EngineSettings(
            prefill_tokens_per_s=self.prefill_tokens_per_s,
            step_s=self.step_ms / 1000,
            step_s_per_request=self.step_ms_per_request / 1000,
            prefill_overlap=self.prefill_overlap,
            chunk_tokens=self.chunk_tokens,
            max_running=self.max_running,
            kv_tokens=self.kv_tokens,
            block_size=self.block_size,
        )
