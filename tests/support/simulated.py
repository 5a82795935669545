"""What tests of the simulator play on."""

from __future__ import annotations

from router.simulate.engine import EngineSettings

# A step takes 10 ms, 1 ms for each answer and 1 ms for each prompt token.
ENGINE = EngineSettings(
    prefill_tokens_per_s=1000.0,
    step_s=0.010,
    step_s_per_request=0.001,
    prefill_overlap=0.0,
    chunk_tokens=100,
    max_running=4,
    kv_tokens=10_000,
    block_size=10,
)
