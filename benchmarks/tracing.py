"""What traces cost a gateway: CPU of the whole process a request, without them and at several shares.

    python -m benchmarks.tracing [--slices 20] [--generations 3]

Gateways that differ in nothing else stand before one router and one worker, none of which traces, and get the same
short streams in turn, a hundred each time: ten tokens of prompt and one of answer, so that a request costs as little as
it can. A gateway's CPU is counted over all turns, those of the others included, for it exports in them; the collector
runs in this process. Then all gateways are started anew, because processes of one kind differ, too: `control` is
another gateway without traces, and says by how much. `percent` is the median over generations of what a gateway needed
more than the one without traces, with the least and the most; it may be 10 at a share of 0.1.

Beside it `parts`: the gateway's own functions for one request of one attempt, timed alone on one thread, where others
on the machine disturb less. `ids` is what every request pays; the rest only those that are kept.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from benchmarks.conversations import chat_body
from benchmarks.report import process_cpu_s, write_report
from benchmarks.request_path import MODEL, scripted_mesh, send_all
from gateway.core.sse import Usage
from gateway.core.trace import Ended, RequestTrace, spans
from gateway.tracing import Tracing
from inferway.metrics import Registry
from inferway.trace_export import Encoder, Tracer
from tests.support.otlp import Collector
from tests.support.probes import http_json
from tests.support.processes import Mesh, Process
from tests.support.waiting import wait_until

WITHOUT = "none"
SHARES = ("0.1", "1.0")
# Requests that one gateway gets in a row.
SLICE = 100
# More than the exporter's interval, so that all has left.
EXPORT_S = 1.0
# Requests whose parts are timed together.
BATCH = 100


def measure(mesh: Mesh, collector: Collector, slices: int, generations: int) -> list[dict[str, Any]]:
    assert mesh.router is not None
    flags = ["--listen", "127.0.0.1:0", "--routers", mesh.router.address]
    traced = ["--otlp-endpoint", collector.endpoint, "--trace-sample-ratio"]
    variants = {WITHOUT: flags, "control": flags, **{share: [*flags, *traced, share] for share in SHARES}}
    body = chat_body(MODEL, [{"role": "user", "content": "hello"}], stream=True, max_tokens=1)
    costs: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(generations):
        with ExitStack() as stack:
            gateways = [(name, stack.enter_context(Process("gateway", *args))) for name, args in variants.items()]
            for _, gateway in gateways:
                wait_until(lambda at=gateway: http_json(f"http://{at.address}/health/ready")[0] == 200, 60, "ready")
                uvloop.run(send_all(gateway.address, [body] * SLICE))
            time.sleep(EXPORT_S)
            before = {name: process_cpu_s(gateway.pid) for name, gateway in gateways}
            for number in range(slices):
                turn = number % len(gateways)  # nobody is always the first
                for _, gateway in gateways[turn:] + gateways[:turn]:
                    uvloop.run(send_all(gateway.address, [body] * SLICE))
            time.sleep(EXPORT_S)
            for name, gateway in gateways:
                costs[name].append((process_cpu_s(gateway.pid) - before[name]) / (slices * SLICE) * 1e6)
    rows = []
    for name, spent in costs.items():
        more = [100 * (cost / without - 1) for cost, without in zip(spent, costs[WITHOUT], strict=True)]
        row = {"share": name, "cpu_us": round(statistics.median(spent)), "percent": round(statistics.median(more), 1)}
        rows.append(row | {"least": round(min(more), 1), "most": round(max(more), 1)})
    return rows


@dataclass(frozen=True)
class Traced:
    otlp_endpoint: str = "http://127.0.0.1:1"


def measure_parts(rounds: int) -> dict[str, Any]:
    """Medians in microseconds a request."""
    tracing = Tracing(Tracer("gateway", Traced(), Registry("gateway")), 0.0)
    encode = Encoder("gateway", "bench")
    end = Ended(
        "one.1",
        "POST",
        "/v1/chat/completions",
        200,
        False,
        "ok",
        1.0,
        2.0,
        4.0,
        5.0,
        MODEL,
        True,
        1,
        Usage(9, 1),
        "t",
        "k",
    )

    def request() -> RequestTrace:
        trace = tracing.begin("")
        attempt = trace.attempt(now=2.0)
        trace.told_router(attempt)
        attempt.granted("w", "127.0.0.1:1", now=3.0)
        trace.told_worker(attempt)
        attempt.first_token_at = 4.0
        attempt.ended(now=4.5)
        tracing.keeps(trace, is_failure=False, now=5.0)
        return trace

    traces = [request() for _ in range(BATCH)]
    made = [span for trace in traces for span in spans(trace, end)]
    parts: dict[str, Callable[[], object]] = {
        "ids": lambda: [request() for _ in range(BATCH)],
        "spans": lambda: [spans(trace, end) for trace in traces],
        "encode": lambda: encode(made).SerializeToString(),
    }
    return {
        name: round(statistics.median(_us_a_request(part) for _ in range(rounds)), 1) for name, part in parts.items()
    }


def _us_a_request(part: Callable[[], object]) -> float:
    started = time.thread_time_ns()
    part()
    return (time.thread_time_ns() - started) / 1000 / BATCH


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slices", type=int, default=20)
    parser.add_argument("--generations", type=int, default=3)
    options = parser.parse_args()
    write_report("tracing_parts", [measure_parts(50)])
    with TemporaryDirectory() as directory, scripted_mesh(str(Path(directory))) as mesh, Collector() as collector:
        write_report("tracing", measure(mesh, collector, options.slices, options.generations))


if __name__ == "__main__":
    main()
