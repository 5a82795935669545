"""docs/admin.md, from the table of endpoints."""

from __future__ import annotations

import msgspec

from gateway.admin.credentials import LEAST_CHARACTERS, UNNAMED
from gateway.admin.endpoints import ENDPOINTS, PREFIX, Endpoint
from gateway.admin.usage import MOST_ENTRIES
from gateway.core.tenants import KeyFields, TenantFields
from inferway.usage import GROUPS


def admin_page(note: str) -> str:
    rows = "\n".join(_row(endpoint) for endpoint in ENDPOINTS)
    groups, entries = ", ".join(f"`{name}`" for name in GROUPS), MOST_ENTRIES
    return f"""{note}
# For admins

A gateway has a second port, for those who say who may ask it for what: tenants, keys, limits, blocks, and the
requests that run. Whatever is said there of tenants, keys and blocks is kept in Redis (`--redis`) and is in force on
all gateways at once: each hears of a change as it is made, and one that cannot hear asks Redis again for whatever is
older than a second. What is set in the file of tenants ([models and tenants](models-and-tenants.md)) is shown and can
only be changed in the file.

## The port and its credentials

`--admin-listen HOST:PORT` opens it; without the flag there is none. `make run` opens it on 127.0.0.1:8001 with a token
of its own, which the commands below find by themselves. It needs a credential on every address, loopback included, and
`--insecure` does not change that: another user of the machine, or a web page in a browser on it, could connect as well.

`--admin-token` (better its variable, `INFERWAY_ADMIN_TOKEN`) is one token, named `{UNNAMED}`. `--admin-token-file`
holds several, a line each: a token, or a name and a token. The name is what the audit log says of a change. The file
is read again when it changes, so that a token is replaced by adding the new one, moving its users, and taking the old
one away. A token has {LEAST_CHARACTERS} characters at least; a version of the file with a mistake lets nobody in by
the file. `python -c 'import secrets; print(secrets.token_urlsafe(32))'` makes one.

The port speaks plain HTTP: keep it on loopback or inside the cluster, behind whatever does TLS there. Nothing of it
is on the port for clients. Several processes of one gateway (`--processes`) share it.

## Commands

```
python -m inferway tenants create research quota.requests_per_minute=600 models=chat,llama-*
python -m inferway keys create research anna-laptop expires=2027-06-30 quota.tokens_per_day=1000000
python -m inferway tenants show research
python -m inferway keys revoke research anna-laptop
python -m inferway block tenant research --reason "runaway loop" --kill
python -m inferway requests list --tenant research
python -m inferway requests kill 0195f2a4-7d1e-7c7b-9a51-0e6f6a2d9c11
python -m inferway audit
```

`--admin HOST:PORT` and `--admin-token-file FILE` (or `INFERWAY_ADMIN`, `INFERWAY_ADMIN_TOKEN`) say which mesh;
`--json` prints what the port answers. `FIELD=VALUE` is a field of the file of tenants, members behind dots; a value
is JSON where it can be read so, else text, and `models` takes names separated by commas. `FIELD=` takes a field away.
A new key is alone on standard output: `KEY=$(python -m inferway keys create research ci)`.

## Endpoints

Requests carry `Authorization: Bearer TOKEN`; bodies and answers are JSON. Every path begins with `{PREFIX}`.

| | | what it does | body | answer |
| --- | --- | --- | --- | --- |
{rows}

Fields of tenants and keys, and what they may be, are those of the file of tenants. A PATCH is a JSON merge patch (RFC
7396): what it leaves out stays, `null` takes a field away. Where two admins change one thing in the same moment, the
last one holds; the audit log has both.

A key is shown in the answer that makes it and never again: Redis holds its keyed hash. `expires` is a day or a time,
from which it is refused; in UTC unless it says otherwise. To replace a key without a gap create a second one, and
revoke the first when nobody uses it any more (`rotate` ends the old text at once).

A list of tenants goes on behind `next`: `?after=NEXT`. The audit log goes on behind its last `id`: `?before=ID`.

`usage` takes `since`, `until` (a day, a time, or so long ago: `24h`) and `by` (some of {groups}, separated by
commas). It sums up to {entries:,} entries that are still in Redis; `"is_whole": false` says that there are more,
and that these are the first of them: `python -m inferway usage` sums them all ([usage](usage.md)). `standings`
tells what is used now of each bound, in requests or weighted tokens, and after how long nothing would count any
more.

## Blocks

A block refuses every further request, also where the tenant or the key stands in the file or in a token, until it is
taken away. A blocked key is like one that was revoked (401); a blocked tenant or model is a 403 that says so
(`tenant_blocked`, `model_blocked`). What is being answered goes on, unless `"kill": true` (`--kill`) ends it too.
Models are blocked by the name that callers use or by the one behind an alias. A name need not exist to be blocked.

## Requests in flight

The list has what every gateway is answering: id, tenant, key, model, worker, age, tokens so far, and a stage:

| stage | |
| --- | --- |
| `receiving` | its body is being read |
| `preparing` | template, tokenizer, quota |
| `waiting` | for a worker, in the router's queue |
| `prefilling` | a worker has it and has said nothing yet |
| `generating` | tokens come |
| `sending` | all has been made, and the client has not read it yet |

A request that is killed ends as `request_killed`: 403 where its answer has not begun, else an error event and `[DONE]`.
Its place in the queue, on the worker and in its quota is given back as if its client had left, and what was produced is
booked. Requests may share an `X-Request-Id`: all that have it are ended. What is `sending` is left alone.

`gateways` is how many processes answered, `silent` how many did not within three seconds (they may have just gone).
`null` says that Redis did not answer, so that only the process that was asked has done its part; `gateways` is then 1.
Without Redis there is only that process.

## The audit log

Every change is recorded before it is made, with the time, the name of the credential, and what stood before and after,
without keys: a stream in Redis of about 100,000 changes, and a line `admin_change` in the log of the gateway. Without
Redis the last 1,000 are in the memory of the process. Questions are lines in the log only (`admin_request`).

## Failures

The error object and the statuses are those of [errors](errors.md); `param` is the place of the first mistake in the
body, and the message has all of them.

| | |
| --- | --- |
| 400 | the body or a parameter is wrong |
| 401 `invalid_api_key` | no admin token, or a wrong one |
| 404 `not_found` | there is no such tenant, key, block or request; `unknown_url`: no such path |
| 409 `conflict` | a key of that name is there already, or was revoked meanwhile |
| 409 `read_only` | it is set in the file of tenants, or there is no Redis |
| 503 `auth_unavailable` | Redis did not answer: the change may have been made or not; ask again |
"""


def _row(endpoint: Endpoint) -> str:
    path = endpoint.path
    if endpoint.query is not None:
        path += "?" + "&".join(endpoint.query.__struct_fields__)
    body = "fields to change" if endpoint.is_patch else _body(endpoint.body)
    cells = (f"`{endpoint.method}`", f"`{path}`", endpoint.does, body, endpoint.answer)
    return "| " + " | ".join(cells) + " |"


def _body(shape: type[msgspec.Struct] | None) -> str:
    """Its own fields; those of tenants and keys are named as a whole."""
    if shape is None:
        return ""
    if shape is TenantFields:
        return "fields of a tenant"
    is_key = issubclass(shape, KeyFields)
    own = [name for name in shape.__struct_fields__ if not is_key or name not in KeyFields.__struct_fields__]
    return ", ".join([*(f"`{name}`" for name in own), *(["fields of a key"] if is_key else [])])
