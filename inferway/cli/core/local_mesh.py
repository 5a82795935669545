"""The smallest mesh: one worker, one router and one gateway on this machine, and what to tell who started it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
# Ports of the services' own defaults, by role; any of them but the public one may be replaced by a free one.
PUBLIC_PORT = 8000
INNER_PORTS: Mapping[str, int] = {"worker": 50051, "worker-ops": 9101, "router": 50050, "router-ops": 9100}

TOKEN_VARIABLE = "INFERWAY_INTERNAL_TOKEN"


@dataclass(frozen=True, slots=True)
class Child:
    """A process to run: `python -m module arguments`."""

    module: str
    arguments: tuple[str, ...]


def children(
    ports: Mapping[str, int], *, engine: str, scripts: str, processes: int, log_level: str
) -> dict[str, Child]:
    """The processes by name, in the order of starting. `ports` has the keys of INNER_PORTS and "public"."""
    worker, router = f"{LOOPBACK}:{ports['worker']}", f"{LOOPBACK}:{ports['router']}"
    log = ("--log-level", log_level)
    listen_worker = ("--listen", worker, "--ops-listen", f"{LOOPBACK}:{ports['worker-ops']}")
    listen_router = ("--listen", router, "--ops-listen", f"{LOOPBACK}:{ports['router-ops']}")
    listen_gateway = ("--listen", f"{LOOPBACK}:{ports['public']}")
    script_flags = ("--scripts", scripts) if scripts else ()
    # Nothing stands in front that would have to notice before the door closes, and who presses Ctrl-C waits.
    drain = ("--drain-delay-s", "0", "--drain-limit-s", "5")
    return {
        "worker": Child("worker", ("--engine", engine, *listen_worker, *script_flags, *log)),
        "router": Child("router", (*listen_router, "--workers", worker, *log)),
        "gateway": Child(
            "gateway", (*listen_gateway, "--routers", router, "--processes", str(processes), *drain, *log)
        ),
    }


def environment(environ: Mapping[str, str], token: str) -> dict[str, str]:
    """The children's environment: the caller's, with a token that only they know."""
    kept = {name: value for name, value in environ.items() if name != f"{TOKEN_VARIABLE}_FILE"}
    return kept | {TOKEN_VARIABLE: token}


def is_about_ports(lines: Sequence[str], ports: Mapping[str, int]) -> bool:
    """Whether the last words of a process name an address that it was given: it could not have it."""
    named = re.findall(rf"{re.escape(LOOPBACK)}:(\d+)", lines[-1]) if lines else []
    return any(int(port) in ports.values() for port in named)


QUESTION = "Give me three tips for staying healthy."


def curl_line(base_url: str, model: str) -> str:
    return f"""curl -N {base_url}/chat/completions -H 'Content-Type: application/json' -d '{{
  "model": "{model}", "stream": true, "max_tokens": 128,
  "messages": [{{"role": "user", "content": "{QUESTION}"}}]
}}'"""


def python_snippet(base_url: str, model: str) -> str:
    return f"""from openai import OpenAI  # pip install openai

client = OpenAI(base_url="{base_url}", api_key="any")
stream = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "{QUESTION}"}}],
    max_tokens=128,
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()"""


def greeting(port: int, model: str) -> str:
    """What a newcomer needs, in less than two screens. Both examples work as printed."""
    base_url = f"http://{LOOPBACK}:{port}/v1"
    return f"""
Inferway is serving.

  base URL  {base_url}
  model     {model}
  API key   any

Stream an answer with curl:

{curl_line(base_url, model)}

Or with Python:

{python_snippet(base_url, model)}

Ctrl-C stops.
"""
