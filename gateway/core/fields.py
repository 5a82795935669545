"""What becomes of each field of a request body: one table for an endpoint.

Requests are screened by it, and docs/api.md and /openapi.json are made from it. Types stand in the structs that bodies
are read into; ranges of sampling in inferway.sampling, where workers find them, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Any

from inferway.sampling import (
    COMPLETION_LOGPROBS,
    LOGIT_BIAS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    PRIORITY,
    PROMPT_ONLY,
    RANGES,
    TOP_LOGPROBS,
    Range,
)

from .body import unsupported

# OpenAI's own bounds.
MAX_CHOICES = 128
MAX_PROMPTS = 2048
MAX_METADATA_PAIRS = 16
MAX_TOOLS = 128
MAX_INPUTS = 2048
MAX_DIMENSIONS = 65_536
# OpenAI's own, unlike that of chat.
COMPLETION_MAX_TOKENS = 16
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
PART_TYPES = ("text", "input_text", "output_text", "refusal")
SERVICE_TIERS = ("auto", "default", "flex", "scale", "priority", "fast")
ENCODINGS = ("float", "base64")


class Effect(Enum):
    HONOURED = "honoured"
    # Clients send it by habit, and no answer changes: accepted, and named in the header x-inferway-ignored.
    IGNORED = "ignored"
    # Would change the answer, and no model does it yet: a 400 that names it. An empty list or the default would not.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    """One field, or one member of an object. `default` is a value as JSON has it, `default_text` says it in words.

    With `needs`, a field is honoured where the model has that capability, and refused by name elsewhere. `items` and
    `characters` bound lists, objects and strings: OpenAI's bounds and ours, of which configuration may set lower ones.
    """

    name: str
    meaning: str
    effect: Effect = Effect.HONOURED
    needs: str = ""
    default: bool | int | str | None = None
    default_text: str = ""
    within: Range | None = None
    items: Range | None = None
    characters: Range | None = None
    values: tuple[str, ...] = ()
    members: FieldTable | None = None
    example: Any = None


class FieldTable:
    """The fields of one endpoint, or the members of one object, in the order in which they are documented."""

    def __init__(self, *fields: Field) -> None:
        self.fields = {field.name: field for field in fields}
        assert len(self.fields) == len(fields), "a field stands here twice"
        self._honoured = frozenset(field.name for field in fields if field.effect is Effect.HONOURED)
        self._nested = [(field.name, field.members) for field in fields if field.members is not None]

    def screen(self, body: Mapping[str, Any]) -> list[str]:
        """Names of what was sent and has no effect, for the header; members of lists as `messages[].name`.

        What nobody knows counts as such. Raises ApiError (400) for a field that is refused. The types of the body's
        members may be wrong. Null is the same as absent.
        """
        found: dict[str, None] = {}
        self._screen(body, "", found)
        return list(found)

    def _screen(self, body: Mapping[str, Any], prefix: str, found: dict[str, None]) -> None:
        if not body.keys() <= self._honoured:
            self._screen_names(body, prefix, found)
        for name, table in self._nested:
            value = body.get(name)
            if isinstance(value, dict):
                table._screen(value, f"{prefix}{name}.", found)
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    # A conversation has many messages, of which mostly nothing is to be said.
                    if isinstance(item, dict) and not table._is_plain(item):
                        table._screen(item, f"{prefix}{name}[{index}].", found)

    def _screen_names(self, body: Mapping[str, Any], prefix: str, found: dict[str, None]) -> None:
        for name, value in body.items():
            if name in self._honoured or value is None:
                continue
            field = self.fields.get(name)
            if field is not None and field.effect is Effect.REFUSED and value not in (field.default, []):
                raise unsupported(prefix + name, f"'{prefix}{name}' is not supported.")
            if len(found) < _MAX_NAMED and _HEADER_NAME.match(named := _INDEX.sub("[]", prefix + name)):
                found[named] = None

    def _is_plain(self, item: Mapping[str, Any]) -> bool:
        if not item.keys() <= self._honoured:
            return False
        for name, _ in self._nested:  # noqa: SIM110 (runs for every message)
            if isinstance(item.get(name), list | dict):
                return False
        return True


_INDEX = re.compile(r"\[\d+\]")
# What may stand in a response header, and how much of it.
_HEADER_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}\Z")
_MAX_NAMED = 16


def _sampled(name: str, meaning: str, **more: Any) -> Field:
    """A field that goes to the engine, where that has the capability of its name."""
    return Field(name, meaning, needs=name, within=RANGES.get(name), **more)


def _ignored(name: str, meaning: str, **more: Any) -> Field:
    return Field(name, meaning, Effect.IGNORED, **more)


def _refused(name: str, meaning: str, **more: Any) -> Field:
    return Field(name, meaning, Effect.REFUSED, **more)


_MODELS_OWN = "the model's own"

MODEL = Field("model", "Name or alias of a model, or MODEL:ADAPTER for one of its adapters; GET /v1/models lists them.")

STREAM_OPTIONS = FieldTable(
    Field("include_usage", "One more chunk at the end, without choices, that counts tokens.", default=False),
    Field("continuous_usage_stats", "Every chunk counts the tokens so far; implies include_usage.", default=False),
    _ignored("include_obfuscation", "Chunks are never padded."),
)

_GENERATION = (
    Field("stream", "Send the answer as server-sent events, while it is made.", default=False),
    Field("stream_options", "Only with stream.", members=STREAM_OPTIONS),
    Field("n", "Choices to generate for each prompt.", needs="n", default=1, within=Range(1, MAX_CHOICES)),
    _sampled("temperature", "Higher is more random; 0 takes the likeliest token.", default_text=_MODELS_OWN),
    _sampled(
        "top_p", "Sample from the likeliest tokens that have this share of probability.", default_text=_MODELS_OWN
    ),
    _sampled("top_k", "Sample from this many of the likeliest tokens; 0 or -1: all.", default_text=_MODELS_OWN),
    _sampled(
        "min_p", "Leave out tokens below this share of the likeliest one's probability.", default_text=_MODELS_OWN
    ),
    _sampled("frequency_penalty", "Taken from a token's logit for each time it has been generated.", default=0),
    _sampled("presence_penalty", "Taken from a token's logit once it has been generated.", default=0),
    _sampled("repetition_penalty", "Divides logits of tokens seen before; 1: none.", default_text=_MODELS_OWN),
    _sampled("seed", "Repeats the random choices of sampling, within the limits below.", default_text="random"),
    _sampled("min_tokens", "Tokens before which neither the model's end nor a stop string ends a choice.", default=0),
    _sampled("ignore_eos", "Go on past the model's own end, up to the token limit.", default=False),
    _sampled(
        "stop",
        "One or several texts that end a choice and are not part of it.",
        items=Range(0, MAX_STOPS),
        characters=Range(1, MAX_STOP_CHARACTERS),
    ),
    Field(
        "logit_bias",
        "Object of token ids and what is added to their logits.",
        needs="logit_bias",
        within=LOGIT_BIAS,
    ),
    Field(
        "priority",
        "Larger is served sooner while requests wait. Above the key's highest it is refused.",
        default_text="the key's own",
        within=PRIORITY,
    ),
    Field(
        "lora_request",
        "Name of a loaded adapter of the model: the same as MODEL:ADAPTER. One that is not loaded is a 404.",
    ),
    Field("guided_json", "A JSON schema that the text matches.", needs="constraint.json_schema"),
    Field("guided_regex", "A regular expression that the text matches.", needs="constraint.regex"),
    Field("guided_choice", "List of texts, one of which is the answer.", needs="constraint.regex"),
    Field("guided_grammar", "A grammar that the text matches: Lark or GBNF, EBNF on SGLang.", needs="constraint.ebnf"),
    _ignored("user", "Names the caller's own user; never an authority."),
)

# What other servers take, and OpenAI for other models.
_REFUSED_GENERATION = (
    _refused("allowed_token_ids", "Restricts the vocabulary."),
    _refused("bad_words", "Forbids words."),
    _refused("ebnf", "Restricts the text to a grammar."),
    _refused("include_stop_str_in_output", "Keeps the stop string in the text.", default=False),
    _refused("json_schema", "Restricts the text to a JSON schema."),
    _refused("length_penalty", "Belongs to beam search.", default=1),
    _refused("prompt_logprobs", "Log-probabilities of the prompt; completions have them with echo."),
    _refused("regex", "Restricts the text to a regular expression."),
    _refused("skip_special_tokens", "Shows control tokens in the text.", default=True),
    _refused("stop_token_ids", "Ends a choice at token ids."),
    _refused("structured_outputs", "Restricts the text."),
    _refused("truncate_prompt_tokens", "Shortens the prompt."),
    _refused("use_beam_search", "Another way of decoding.", default=False),
)

CONTENT_PART = FieldTable(
    Field("type", "All are read as text.", values=PART_TYPES),
    Field("text", "The text of the part."),
    Field("refusal", "The text of a part of type refusal."),
    _ignored("prompt_cache_breakpoint", "Prefixes are cached wherever they repeat."),
    _ignored("cache_control", "Prefixes are cached wherever they repeat."),
)

MESSAGE = FieldTable(
    Field("role", "Who speaks; developer is read as system.", values=ROLES),
    Field("content", "Text, or a list of parts, whose texts are joined by line feeds.", members=CONTENT_PART),
    Field("name", "Who speaks, for templates that show it."),
    Field("tool_calls", "Calls that an assistant's message made."),
    Field("tool_call_id", "The call that a tool's message answers; required there."),
    Field("reasoning_content", "What an assistant thought before its message, for templates that show it."),
    Field("refusal", "Stands for the content of an assistant's message that has none."),
    Field("function_call", "The older form of a call; its message may have no content."),
    _refused("audio", "An earlier spoken answer."),
)

_CONVERSATION = [{"role": "user", "content": "Say hello."}]

CHAT = FieldTable(
    MODEL,
    Field("messages", "The conversation.", items=Range(1, inf), members=MESSAGE, example=_CONVERSATION),
    Field(
        "max_completion_tokens",
        "Tokens that a choice may have.",
        needs="max_tokens",
        within=RANGES["max_tokens"],
        default_text="what the context leaves",
    ),
    _sampled(
        "max_tokens",
        "Older name of max_completion_tokens; sent together, they must agree.",
        default_text="what the context leaves",
    ),
    *_GENERATION,
    Field("logprobs", "Return the log-probability of each token.", needs="logprobs", default=False),
    Field(
        "top_logprobs",
        "How many of the likeliest tokens to name beside each; only with logprobs.",
        needs="logprobs",
        default=0,
        within=TOP_LOGPROBS,
    ),
    Field(
        "tools",
        "Functions that the model may call. Of a model whose template knows none they are named as ignored, unless a "
        "call is forced; of one whose way of calling nobody can read they are refused. The arguments of strict "
        "functions are held to their schemas by a grammar wherever a call is forced; under a free choice where the "
        "model has the capability constraint.structural_tag and its format a grammar, and else tools[].function.strict "
        "is named as ignored.",
        items=Range(0, MAX_TOOLS),
    ),
    Field(
        "tool_choice",
        "auto, none, required, a function, or allowed_tools. What must be called is forced by a grammar, where the "
        "model has the capability constraint.json_schema; of a model whose template knows no tools it is one call.",
        default="auto",
    ),
    Field("parallel_tool_calls", "Whether one answer may have several calls; further ones are left out.", default=True),
    Field("functions", "Older form of tools; the answer has function_call instead of tool_calls."),
    Field("function_call", "Older form of tool_choice: auto, none, or the name of a function."),
    Field(
        "response_format",
        "text, json_object, or json_schema with a schema that the answer matches.",
        default_text="text",
        needs="constraint.json_schema",
    ),
    Field("modalities", 'Only ["text"].'),
    Field(
        "service_tier",
        "Instead of priority: flex is two lower, priority and fast are two higher, the others are the key's own. The "
        "answer says which one served.",
        default="auto",
        values=SERVICE_TIERS,
    ),
    Field("prompt_cache_key", "Keeps requests that belong together on one model of an alias that stands for several."),
    Field("chat_template_kwargs", 'Variables for the chat template, such as {"enable_thinking": false}.'),
    _ignored("metadata", "Names and values.", items=Range(0, MAX_METADATA_PAIRS)),
    _ignored("prompt_cache_options", "Prefixes are cached wherever they repeat."),
    _ignored("prompt_cache_retention", "Prefixes stay cached while there is room."),
    _ignored("safety_identifier", "Names the caller's own user."),
    _ignored("store", "Answers are never stored."),
    _refused("add_generation_prompt", "Leaves out the beginning of the answer.", default=True),
    _refused("audio", "Speaks the answer."),
    _refused("chat_template", "Another template than the model's."),
    _refused("continue_final_message", "Goes on with the last message.", default=False),
    _refused("documents", "Texts for the template."),
    _refused("moderation", "Judges, or blocks, prompt and answer."),
    _refused("prediction", "What the answer will mostly be."),
    _refused("reasoning_effort", "How long to think; chat_template_kwargs reaches templates that can be told."),
    _refused("verbosity", "How long the answer is to be.", default="medium"),
    _refused("web_search_options", "Searches the web."),
    *_REFUSED_GENERATION,
)

COMPLETION = FieldTable(
    MODEL,
    Field(
        "prompt",
        "One or several texts, or lists of token ids; choices come prompt by prompt.",
        items=Range(1, MAX_PROMPTS),
        example="Once upon a time",
    ),
    Field(
        "max_tokens",
        "Tokens that a choice may have; 0, only with echo, for a choice that is the prompt and nothing else.",
        needs="max_tokens",
        default=COMPLETION_MAX_TOKENS,
        within=Range(PROMPT_ONLY, RANGES["max_tokens"].most),
    ),
    *_GENERATION,
    Field("echo", "Begin each choice with its prompt.", default=False),
    Field(
        "best_of",
        "Candidates to generate for each prompt, of which the answer has the n with the highest log-probability per "
        "token. All of them are counted. Above n: not with stream, and where the model has log-probabilities.",
        default_text="n",
        within=Range(1, MAX_CHOICES),
    ),
    Field(
        "logprobs",
        "Return the log-probability of each token, and of this many of the likeliest; with echo the prompt's, too.",
        needs="logprobs",
        within=COMPLETION_LOGPROBS,
    ),
    _refused("suffix", "The text after the completion."),
    *_REFUSED_GENERATION,
)

EMBEDDING = FieldTable(
    MODEL,
    Field(
        "input",
        "One or several texts, or lists of token ids; none may be empty.",
        items=Range(1, MAX_INPUTS),
        example=["Hello.", "Good morning."],
    ),
    Field(
        "dimensions",
        "Length of the vectors.",
        needs="dimensions",
        within=Range(1, MAX_DIMENSIONS),
        default_text=_MODELS_OWN,
    ),
    Field(
        "encoding_format",
        "float: lists of numbers; base64: 32-bit floats, little-endian.",
        default="float",
        values=ENCODINGS,
    ),
    _ignored("user", "Names the caller's own user."),
)

TOKENIZE = FieldTable(
    MODEL,
    Field("prompt", "A text, read as a completion's prompt. Either this or messages."),
    Field("messages", "A conversation, read as that of a chat.", members=MESSAGE, example=_CONVERSATION),
    Field("add_special_tokens", "With prompt: what the tokenizer puts around a text, such as BOS.", default=True),
    Field("tools", "With messages: as in a chat."),
    Field("chat_template_kwargs", "With messages: as in a chat."),
)

DETOKENIZE = FieldTable(MODEL, Field("tokens", "Token ids; control tokens are written out.", example=[1, 2, 3]))
