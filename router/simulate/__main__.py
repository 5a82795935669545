"""`python -m router.simulate`, which people type as `python -m inferway simulate`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from math import ceil, inf
from pathlib import Path
from random import Random

from inferway.config import load_or_exit
from inferway.errors import Reason

from ..core.placement.policies import policy_named
from .capacity import NoCapacity, capacity, first_guess, ttft_bound_s
from .config import Config
from .figures import figures, percentile, summarize
from .plot import ttft_plot
from .replay import FleetSettings, Outcome, replay
from .report import Run, json_line, tables
from .trace import Trace, TraceError, read_trace

_PROG = "python -m inferway simulate"
_MISTAKE = 2


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    """Results on standard output, the same for the same seed; progress on standard error. 2 for a mistake."""
    config = load_or_exit(Config, "simulate", environ, argv, prog=_PROG)
    if mistakes := config.mistakes():
        return _refuse(mistakes)
    try:
        with Path(config.trace).open(encoding="utf-8") as lines:
            trace = read_trace(lines, block_size=config.block_size, model=config.model, limit=config.requests)
        runs, times = _compare(config, trace)
        if config.plot:
            title = f"{len(trace.requests)} requests, {config.workers} workers, speed {runs[0].speed:.4g}"
            Path(config.plot).write_text(ttft_plot(times, title), encoding="utf-8")
    except (TraceError, NoCapacity) as error:
        return _refuse([f"{config.trace}: {error}"])
    except (OSError, UnicodeDecodeError) as error:
        return _refuse([str(error)])
    if not config.json:
        print(_heading(config, trace, runs[0]) + "\n" + tables(runs))
    return 0


def _compare(config: Config, trace: Trace) -> tuple[list[Run], dict[str, list[float]]]:
    """Play the trace for each policy; also their times to first token. Raises NoCapacity."""
    settings = _fleet(config, trace)
    round_robin_speed = None
    speed = config.speed or 1.0
    if config.load is not None:
        round_robin_speed = _round_robin_speed(config, trace, settings)
        speed = config.load * round_robin_speed
    runs, times = [], {}
    for policy in config.policy:
        outcomes = _play(config, trace, settings, policy, speed)
        summary = summarize(outcomes, workers=config.workers)
        runs.append(Run(policy, speed, config.workers, config.seed, config.load, round_robin_speed, summary))
        times[policy] = [outcome.ttft_s for outcome in outcomes if not outcome.error]
        if config.json:
            print(json_line(runs[-1]), flush=True)
    return runs, times


def _fleet(config: Config, trace: Trace) -> FleetSettings:
    lengths = sorted(request.completion_tokens for request in trace.requests)
    return FleetSettings(
        workers=config.workers,
        engine=config.engine(),
        expected_tokens=config.expected_tokens or ceil(percentile(lengths, 0.9) or 1),
        hop_s=config.hop_ms / 1000,
        report_s=config.report_ms / 1000,
        kv_events=config.kv_events,
        queue_timeout_s=inf if config.queue_timeout_s is None else config.queue_timeout_s,
    )


def _round_robin_speed(config: Config, trace: Trace, settings: FleetSettings) -> float:
    bound_s = ttft_bound_s(trace.requests, settings.engine)

    def carries(speed: float) -> bool:
        outcomes = _play(config, trace, settings, "round_robin", speed)
        ttft_s = figures(outcomes).ttft_mean_s
        turned_away = any(outcome.error == Reason.OVERLOADED.label for outcome in outcomes)
        return not turned_away and ttft_s is not None and ttft_s <= bound_s

    return capacity(carries, first_guess(trace.requests, config.workers, settings.engine))


def _play(config: Config, trace: Trace, settings: FleetSettings, policy: str, speed: float) -> list[Outcome]:
    started = time.monotonic()
    outcomes = replay(
        trace.requests, speed=speed, policy=policy_named(policy), rng=Random(config.seed), settings=settings
    )
    _say(f"{policy} at speed {speed:.4g}: played in {time.monotonic() - started:.1f} s")
    return outcomes


def _heading(config: Config, trace: Trace, run: Run) -> str:
    requests = trace.requests
    prompts = sum(request.prompt_tokens for request in requests)
    answers = sum(request.completion_tokens for request in requests)
    lines = [
        f"{len(requests)} requests in {requests[-1].at_s / run.speed:.0f} s (speed {run.speed:.4g}): "
        f"{prompts / len(requests):.0f} prompt and {answers / len(requests):.0f} completion tokens on average",
        f"{config.workers} workers: {config.prefill_tokens_per_s:.0f} prompt tokens/s in chunks of "
        f"{config.chunk_tokens}; steps of {config.step_ms:g} ms + {config.step_ms_per_request:g} ms a request; "
        f"{config.max_running} running, {config.kv_tokens} tokens of KV cache",
    ]
    if run.round_robin_speed is not None:
        lines.append(f"round robin carries speed {run.round_robin_speed:.4g}; this is {run.load:g} of it")
    if trace.skipped:
        lines.append(f"{trace.skipped} requests of the log never ran and are left out")
    if trace.recorded_hit_ratio is not None:
        lines.append(f"when it was recorded, {trace.recorded_hit_ratio:.3f} of the prompt tokens were cached")
    return "\n".join(lines)


def _refuse(mistakes: Sequence[str]) -> int:
    for mistake in mistakes:
        _say(mistake)
    return _MISTAKE


def _say(sentence: str) -> None:
    print(f"simulate: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(os.environ, sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
