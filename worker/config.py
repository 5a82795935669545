"""Options of the worker."""

from __future__ import annotations

import shlex
import socket
from dataclasses import dataclass

from inferway.config import Secret, option
from inferway.net import host_and_port
from inferway.trace_export import otlp_option

from .core.formats import REASONING, TOOL_CALLS

ENGINES = ("llamacpp", "minilm", "scripted", "sglang")


@dataclass(frozen=True, slots=True)
class Config:
    """One engine behind the gRPC contract."""

    engine: str = option("llamacpp", "engine to run", choices=ENGINES)
    name: str = option("", "name of this worker, unique in the mesh", default_text="engine, host name and port")
    listen: str = option("127.0.0.1:50051", "gRPC address, host:port; port 0 picks a free one", check=host_and_port)
    ops_listen: str = option(
        "127.0.0.1:9101", "HTTP address of health and metrics; port 0 picks a free one", check=host_and_port
    )
    max_running: int | None = option(
        None,
        "choices in the batch at most; for minilm: texts",
        minimum=1,
        default_text="8 for llamacpp, 32 for minilm, 256 for the others",
    )
    max_waiting: int | None = option(
        None,
        "choices admitted beyond the running ones at most",
        minimum=0,
        default_text="64 for llamacpp, 1024 for the others",
    )
    model_path: str = option(
        "",
        "llamacpp: model file; minilm: model folder; sglang: model folder or name",
        default_text="llamacpp, minilm: the bundled model",
    )
    model_name: str = option(
        "",
        "public name of the model; scripted: of several, separated by commas",
        default_text="the engine's own",
    )
    tool_parser: str = option(
        "",
        "llamacpp: format in which the model writes tool calls; sglang has a flag of its own",
        choices=TOOL_CALLS,
    )
    reasoning_parser: str = option(
        "", "llamacpp: format in which the model writes its thoughts; sglang has a flag of its own", choices=REASONING
    )
    context_length: int | None = option(
        None, "prompt plus completion at most", unit="tokens", minimum=2, default_text="the engine's own"
    )
    threads: int | None = option(None, "llamacpp, minilm: threads", minimum=1, default_text="the engine's own choice")
    engine_flags: str = option(
        "",
        "sglang: flags of SGLang's own command line, quoted as in a shell; or unquoted, behind all others and after --",
        check=shlex.split,
        is_rest=True,
    )
    stall_s: float = option(
        120.0,
        "sglang: a scheduler that has work and shows no progress for this time has failed; long prompt passes get more",
        unit="s",
        minimum=1,
    )
    scripts: str = option("", "scripted: file of scripts (docs/scripted-engine.md)")
    capability: tuple[str, ...] = option((), "scripted: key=value to report, repeatable; key=false takes one away")
    record: str = option("", "scripted: file that gets a JSON line for every Generate and Abort")
    record_steps: bool = option(False, "scripted: the record also gets a line for every step that made tokens")
    record_ends: bool = option(
        False, "scripted: the record also gets a line for every choice that comes to its own end"
    )
    step_ms: float = option(
        0.0, "scripted: length of an engine step; 0: items play as they fall due", unit="ms", minimum=0
    )
    prefill_tokens_per_s: float = option(
        0.0, "scripted: speed of the prompt pass; 0: at once", unit="tokens/s", minimum=0
    )
    kv_tokens: int | None = option(
        None, "scripted: tokens that the KV cache holds", unit="tokens", minimum=64, default_text="the engine's own"
    )

    internal_token: Secret = option(
        Secret(""), "shared secret of the mesh's gRPC streams", env="INFERWAY_INTERNAL_TOKEN"
    )
    internal_token_file: str = option(
        "", "file with that secret, a token a line, re-read on change", env="INFERWAY_INTERNAL_TOKEN_FILE"
    )
    insecure: bool = option(False, "accept anyone who can connect, also off loopback")
    drain_delay_s: float = option(0.0, "after SIGTERM, new requests are still taken for this time", unit="s", minimum=0)
    drain_limit_s: float = option(120.0, "after SIGTERM, running requests may take this long", unit="s", minimum=0)
    otlp_endpoint: str = otlp_option()
    log_level: str = option("info", "least severe level logged", choices=("debug", "info", "warning", "error"))

    def worker_id(self, port: int) -> str:
        """The configured name, or one that is the same at the next start on this port."""
        return self.name or f"{self.engine}-{socket.gethostname()}-{port}"
