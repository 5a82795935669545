"""Speaks with the port for admins of a gateway, for the commands that change what it may be asked for."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from inferway.cli import local_file
from inferway.cli.core.admin_tables import warning
from inferway.cli.core.fields import patch_of
from inferway.cli.core.local_mesh import INNER_PORTS, LOOPBACK
from inferway.cli.core.tables import shown
from inferway.config import Secret, load_or_exit, option

_TIMEOUT_S = 15.0
_PREFIX = "/admin/v1"


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """What every command has that asks the port for admins; each adds its own."""

    admin: str = option(
        "",
        "address of the port for admins of a gateway, host:port, or its URL",
        env="INFERWAY_ADMIN",
        default_text="that of `make run`",
    )
    admin_token: Secret = option(Secret(""), "credential of an admin", env="INFERWAY_ADMIN_TOKEN")
    admin_token_file: str = option("", "file with it; the first one counts", env="INFERWAY_ADMIN_TOKEN_FILE")
    json: bool = option(False, "print JSON instead of text")


O = TypeVar("O", bound=AdminOptions)  # noqa: E741


class Problem(Exception):
    """The sentence for whoever typed the command. `status` is that of the answer; 0: there was none."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


class Misuse(Exception):
    """What is wrong with the command line."""


class Admin(NamedTuple):
    url: str
    token: str

    def ask(self, method: str, *segments: str, body: Any = None, query: Mapping[str, str] | None = None) -> Any:
        """The JSON of a good answer. Raises Problem."""
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/") + "/".join((_PREFIX, *(quote(one, safe="") for one in segments)))
        given = {name: value for name, value in (query or {}).items() if value}
        path += f"?{urlencode(given)}" if given else ""
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        connection = None
        try:
            connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            status, text = response.status, response.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Problem(f"{self.url}: {error or type(error).__name__}") from error
        finally:
            if connection is not None:
                connection.close()
        try:
            answer = json.loads(text)
        except ValueError:
            raise Problem(f"{self.url}: this is no port for admins (status {status})", status) from None
        if status >= 400:
            raise Problem(_message(answer) or f"{self.url}: status {status}", status)
        return answer


@dataclass(frozen=True, slots=True)
class Verb:
    """`words` must be said behind the verb; `run` gets them, and returns the exit status.

    `takes_more`: further words may follow.
    """

    words: tuple[str, ...]
    run: Callable[[Admin, Sequence[str], Any], int]
    takes_more: bool = False
    more: str = "FIELD=VALUE ..."

    def usage(self, command: str, name: str) -> str:
        more = [f"[{self.more}]"] if self.takes_more else []
        return " ".join(["python -m inferway", command, *filter(None, [name]), *self.words, *more])


def run_verb(
    command: str, verbs: Mapping[str, Verb], options: type[O], environ: Mapping[str, str], argv: Sequence[str]
) -> int:
    """Find the verb and run it. Returns 0 when it was done, 1 when it was refused, 2 for a wrong command line.

    A verb named "" is one that is not said.
    """
    usages = [verb.usage(command, name) for name, verb in verbs.items()]
    said = _until_flags(argv)
    name, words = (said[0], said[1:]) if said and "" not in verbs else ("", said)
    config = load_or_exit(options, command, environ, argv[len(said) :], prog=f"python -m inferway {command} ...")
    verb = verbs.get(name)
    try:
        if verb is None:
            raise Misuse("what is to be done must be said before all flags" if not name else f"there is no {name!r}")
        if len(words) < len(verb.words) or (len(words) > len(verb.words) and not verb.takes_more):
            raise Misuse(f"{name or command} needs {' '.join(verb.words) or 'no words'} before all flags")
        return verb.run(admin(environ, config), words, config)
    except Misuse as error:
        print(shown(f"{command}: {error}"), *(f"usage: {usage}" for usage in usages), sep="\n", file=sys.stderr)
        return 2
    except Problem as error:
        print(shown(f"{command}: {error}"), file=sys.stderr)
        return 1


def admin(environ: Mapping[str, str], options: AdminOptions) -> Admin:
    """The port that was named, or that of the mesh that runs on this machine. Raises Problem."""
    token: str = options.admin_token or _first_token(options.admin_token_file)
    if options.admin:
        return Admin(options.admin if "://" in options.admin else f"http://{options.admin}", token)
    local = local_file.read(environ)
    if local is not None and local.admin:
        return Admin(f"http://{local.admin}", local.admin_token)
    return Admin(f"http://{LOOPBACK}:{INNER_PORTS['admin']}", token)


def show(answer: Any, config: AdminOptions, text: Callable[[Any], str]) -> int:
    """Print an answer as it is asked for, and say on standard error what is missing in it. Returns the exit status."""
    print(json.dumps(answer, indent=2, ensure_ascii=False) if config.json else text(answer))
    missing = warning(answer)
    if missing:
        print(f"inferway: {missing}", file=sys.stderr)
    return 1 if missing else 0


def patch_or_misuse(words: Sequence[str]) -> dict[str, Any]:
    """Raises Misuse."""
    try:
        return patch_of(words)
    except ValueError as error:
        raise Misuse(str(error)) from None


def _until_flags(argv: Sequence[str]) -> Sequence[str]:
    flags = [place for place, word in enumerate(argv) if word.startswith("-")]
    return argv[: flags[0]] if flags else argv


def _first_token(path: str) -> str:
    """Raises Problem."""
    if not path:
        return ""
    try:
        lines = [line.split() for line in Path(path).read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"--admin-token-file: {error}") from error
    return next((words[-1] for words in lines if words and not words[0].startswith("#")), "")


def _message(answer: Any) -> str:
    try:
        return str(answer["error"]["message"])
    except (LookupError, TypeError):
        return ""
