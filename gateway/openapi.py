"""GET /openapi.json: the routes of this gateway as an OpenAPI 3.1 document.

Request bodies and answers are described in openapi_schemas.py, failures are the error table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
from aiohttp import web

from inferway.errors import Reason
from inferway.exposition import TEXT

from .core import answer_shapes as shapes
from .core.chat_request import ChatBody
from .core.completion_request import CompletionBody
from .core.embedding_request import EmbeddingBody
from .core.worker_choice import EXCLUDED_HEADER, MAX_EXCLUDED, ONLY_HEADER
from .middleware import Exchange, Handler
from .openapi_schemas import NAMES, STRING, Schema, ref, schemas_of
from .routes.models import ONE_MODEL
from .routes.tokenize import DetokenizeBody, TokenizeBody

PATH = "/openapi.json"
VERSION = "1"


@dataclass(frozen=True, slots=True)
class Operation:
    """What is at one path. Without a `request` it is a GET, with `events` its answer may be a stream of them."""

    id: str
    tag: str
    summary: str
    answer: type[msgspec.Struct] | str
    request: type[msgspec.Struct] | None = None
    events: type[msgspec.Struct] | None = None
    needs_key: bool = True
    # Beyond the failures that every path has.
    failures: tuple[Reason, ...] = ()
    # The body of a status that is no failure of the request.
    unready: type[msgspec.Struct] | None = None


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """What a request may bring beside its key."""

    id: str
    name: str
    meaning: str
    is_of_inference: bool = False


REQUEST_HEADERS = (
    RequestHeader(
        "RequestId",
        "X-Request-Id",
        "The caller's own id: 1 to 128 letters, digits, dots, underscores and hyphens. Others are replaced.",
    ),
    RequestHeader("Traceparent", "traceparent", "W3C trace context; one that is not well-formed is left out."),
    RequestHeader(
        "OnlyWorker",
        ONLY_HEADER,
        "Name of the worker that is to answer, or nobody. Only with a key that may choose workers.",
        is_of_inference=True,
    ),
    RequestHeader(
        "ExcludedWorkers",
        EXCLUDED_HEADER,
        f"Names of workers that are not to answer, separated by commas, {MAX_EXCLUDED} at most. Only with a key that "
        "may choose workers.",
        is_of_inference=True,
    ),
)

INFERENCE = "Inference"

_ANYWHERE = (Reason.INVALID_REQUEST, Reason.HEADERS_TOO_LARGE, Reason.INTERNAL_ERROR)
_WITH_KEY = (Reason.INVALID_API_KEY, Reason.TENANT_BLOCKED, Reason.AUTH_UNAVAILABLE)
_NAMES_A_MODEL = (
    Reason.MODEL_NOT_ALLOWED,
    Reason.MODEL_NOT_FOUND,
    Reason.MODEL_NOT_READY,
    Reason.MODEL_BLOCKED,
)
_HAS_A_BODY = (Reason.REQUEST_TIMEOUT, Reason.PAYLOAD_TOO_LARGE, Reason.UNSUPPORTED_MEDIA_TYPE, Reason.SHUTTING_DOWN)
_OF_TEXT = (*_NAMES_A_MODEL, *_HAS_A_BODY, Reason.UNSUPPORTED_VALUE, Reason.CONVERSATION_NOT_SUPPORTED)
# Whatever can go wrong at all: there are others on the port for admins.
_HERE = tuple(reason for reason in Reason if reason not in (Reason.NOT_FOUND, Reason.CONFLICT, Reason.READ_ONLY))
_COMPUTES = tuple(reason for reason in _HERE if reason is not Reason.METHOD_NOT_ALLOWED)


def _tokenize(name: str) -> Operation:
    summary = "The token ids of a text or of a conversation, as requests to the model are made of them"
    return Operation(name, "Tokens", summary, shapes.TokenIds, TokenizeBody, failures=_OF_TEXT)


def _detokenize(name: str) -> Operation:
    return Operation(name, "Tokens", "The text of token ids", shapes.Text, DetokenizeBody, failures=_OF_TEXT)


OPERATIONS: Mapping[str, Operation] = {
    "/v1/chat/completions": Operation(
        "createChatCompletion",
        INFERENCE,
        "The next message of a conversation",
        shapes.ChatCompletion,
        ChatBody,
        shapes.ChatCompletionChunk,
        failures=_COMPUTES,
    ),
    "/v1/completions": Operation(
        "createCompletion",
        INFERENCE,
        "What follows a text",
        shapes.Completion,
        CompletionBody,
        shapes.Completion,
        failures=_COMPUTES,
    ),
    "/v1/embeddings": Operation(
        "createEmbedding",
        INFERENCE,
        "Vectors of texts",
        shapes.EmbeddingList,
        EmbeddingBody,
        failures=_COMPUTES,
    ),
    "/v1/models": Operation("listModels", "Models", "The models that may be asked", shapes.ModelList),
    f"{ONE_MODEL}{{model}}": Operation(
        "retrieveModel", "Models", "One model, by name or alias", shapes.Model, failures=_NAMES_A_MODEL
    ),
    "/tokenize": _tokenize("tokenize"),
    "/v1/tokenize": _tokenize("tokenizeV1"),
    "/detokenize": _detokenize("detokenize"),
    "/v1/detokenize": _detokenize("detokenizeV1"),
    "/health": Operation("live", "Operations", "Whether the process lives", shapes.Health, needs_key=False),
    "/health/ready": Operation(
        "ready",
        "Operations",
        "Whether new requests should come here",
        shapes.Readiness,
        needs_key=False,
        unready=shapes.Readiness,
    ),
    "/metrics": Operation("metrics", "Operations", "Metrics for Prometheus", TEXT, needs_key=False),
    PATH: Operation("openapi", "Operations", "This API as an OpenAPI document", "application/json", needs_key=False),
}


def document() -> Schema:
    structs: list[type[msgspec.Struct]] = [shapes.Error]
    for operation in OPERATIONS.values():
        structs += [one for one in (operation.answer, operation.events) if isinstance(one, type)]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Inferway",
            "version": VERSION,
            "description": "An OpenAI-compatible API for the language models of this installation. It only grows: "
            "clients must pass over members of answers that they do not know.",
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "paths": {path: {_method(one).lower(): _operation(path, one)} for path, one in OPERATIONS.items()},
        "components": {
            "schemas": schemas_of(structs),
            "responses": {str(status): _failure(status) for status in _statuses(_HERE)},
            "headers": HEADERS,
            "parameters": {header.id: _parameter(header) for header in REQUEST_HEADERS},
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, where the installation asks for one.",
                }
            },
        },
    }


def make_openapi() -> Handler:
    body = msgspec.json.encode(document())

    async def openapi(_request: web.BaseRequest, _exchange: Exchange) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    return openapi


def _method(operation: Operation) -> str:
    return "GET" if operation.request is None else "POST"


def _operation(path: str, operation: Operation) -> Schema:
    described: Schema = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": [
            {"$ref": f"#/components/parameters/{header.id}"}
            for header in REQUEST_HEADERS
            if operation.tag == INFERENCE or not header.is_of_inference
        ],
        "responses": {"200": _success(operation)},
    }
    if not operation.needs_key:
        described["security"] = []
    if "{model}" in path:
        described["parameters"].append(
            {"name": "model", "in": "path", "required": True, "schema": {**STRING, "minLength": 1}}
        )
    if operation.request is not None:
        schema = ref(NAMES[operation.request])
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    reasons = (*_ANYWHERE, *(_WITH_KEY if operation.needs_key else ()), *operation.failures)
    for status in _statuses(reasons):
        described["responses"][str(status)] = {"$ref": f"#/components/responses/{status}"}
    if operation.unready is not None:
        described["responses"]["503"] = {
            "description": "Not now; the body says why.",
            "headers": _headers("x-request-id"),
            "content": {"application/json": {"schema": ref(operation.unready.__name__)}},
        }
    return described


def _success(operation: Operation) -> Schema:
    content: Schema
    if isinstance(operation.answer, str):
        is_json = operation.answer == "application/json"
        content = {operation.answer: {"schema": {"type": "object"} if is_json else STRING}}
    else:
        content = {"application/json": {"schema": ref(operation.answer.__name__)}}
    described = {"description": "The answer.", "headers": _headers("x-request-id"), "content": content}
    if operation.tag == INFERENCE:
        described["headers"] = _headers("x-request-id", *_INFERENCE_HEADERS)
    if operation.events is not None:
        described["description"] = (
            "The answer: in one piece, or with `stream` as server-sent events, each of which has one object of the "
            "schema in its `data`; the last is `data: [DONE]`. A failure on the way is one event with an Error before."
        )
        content["text/event-stream"] = {"schema": ref(operation.events.__name__)}
    return described


HEADERS: Schema = {
    name: {"description": meaning, "schema": STRING}
    for name, meaning in {
        "x-request-id": "Names the request in everything that is logged of it.",
        "x-inferway-ignored": "Fields of the request that were accepted and have no effect, separated by commas.",
        "x-inferway-model": "The model that answered, where the request named an alias.",
        "openai-processing-ms": "Time from the request to the first byte of the answer.",
        "Deprecation": "Something that the request used is on its way out since then (RFC 9745).",
        "Sunset": "The day of its end (RFC 8594).",
        "Link": "Where to read about it.",
        "Retry-After": "Seconds after which a retry has a chance.",
        "retry-after-ms": "The same in milliseconds.",
        "WWW-Authenticate": "Bearer.",
    }.items()
}
_INFERENCE_HEADERS = ("x-inferway-ignored", "x-inferway-model", "openai-processing-ms", "Deprecation", "Sunset", "Link")
_OF_STATUS = {
    401: ("WWW-Authenticate",),
    429: ("Retry-After", "retry-after-ms"),
    503: ("Retry-After", "retry-after-ms"),
}


def _parameter(header: RequestHeader) -> Schema:
    return {"name": header.name, "in": "header", "description": header.meaning, "schema": STRING}


def _headers(*names: str) -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _statuses(reasons: Iterable[Reason]) -> list[int]:
    """Those that are sent: 499 never is."""
    return sorted({reason.value.status for reason in reasons} - {499})


def _failure(status: int) -> Schema:
    reasons = [reason for reason in _HERE if reason.value.status == status]
    meanings = "; ".join(f"`{reason.value.code or reason.label}`: {reason.value.meaning}" for reason in reasons)
    title = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Failure"
    return {
        "description": f"{title}. {meanings}.",
        "headers": _headers("x-request-id", *_OF_STATUS.get(status, ())),
        "content": {"application/json": {"schema": ref("Error")}},
    }
