"""The models that this gateway can serve: description, prompt builder, and what a request may ask of them.

A model becomes ready when its tokenizer has been fetched from a worker and built. It stays known when its
workers leave, so that a request meets 503 and not 404 while they are away. An adapter is forgotten when workers of its
model are there and none has it loaded.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import grpc
import minijinja

from inferway import logs
from inferway.errors import ApiError, Reason

from .core.chat_template import ChatTemplate
from .core.naming import Naming, pick
from .core.prompt import PromptBuilder
from .core.reasoning import SPLITTERS
from .core.tokenizer import Tokenizer
from .core.tools import HARMONY
from .worker_messages import ModelDescription
from .worker_sessions import WorkerSession

log = logging.getLogger(__name__)

_RETRY_S = 1.0


@dataclass(frozen=True)
class ServedModel:
    """A model that is ready."""

    description: ModelDescription
    prompts: PromptBuilder

    @property
    def name(self) -> str:
        return self.description.name

    @cached_property
    def fingerprint(self) -> str:
        """system_fingerprint: changes when the same request may give another answer, with tokenizer or template."""
        description = self.description
        made_of = description.tokenizer_digest + description.chat_template
        if description.parent:
            made_of += description.name
        return "fp_" + hashlib.sha256(made_of.encode()).hexdigest()[:10]


class Catalog:
    """Owned by one task, `run`; read by every request."""

    def __init__(
        self,
        executor: Executor,
        connected: Callable[[], Iterable[WorkerSession]],
        naming: Callable[[], Naming],
    ) -> None:
        self._executor = executor
        self._connected = connected
        self._naming = naming
        self._models: dict[str, ServedModel] = {}
        self._names: dict[str, str] = {}
        self._tokenizers: dict[str, Tokenizer] = {}
        self._changed = asyncio.Event()
        # Whether everything that was described has been built once; stays true.
        self.settled = False

    def refresh(self) -> None:
        """Look at the sessions again: one of them has connected or broken."""
        self._changed.set()

    def real_name(self, name: str, key: str) -> str:
        """The model that a public name or alias stands for; a name that nobody knows stands for itself.

        Where an alias has several models, `key` decides among those that are served now.
        """
        targets = self._naming().targets(name)
        if len(targets) > 1:
            served = {one for session in self._connected() for one in session.models}
            name = pick(targets, {one for one in targets if self._names.get(one, one) in served}, key)
        else:
            (name,) = targets
        return self._names.get(name, name)

    def find(self, name: str) -> ServedModel:
        """The model of a real name. Raises ApiError (MODEL_NOT_FOUND, MODEL_NOT_READY)."""
        model = self._models.get(name)
        if model is not None:
            return model
        if name in self._names or name in self._naming().known or not self._models:
            raise ApiError(
                Reason.MODEL_NOT_READY, f"The model '{name[:200]}' is not ready yet.", "model", retry_after_s=1.0
            )
        raise ApiError(Reason.MODEL_NOT_FOUND, f"The model '{name[:200]}' does not exist.", "model")

    def has(self, name: str) -> bool:
        """Whether this is the name of a model that has been ready: what may become a metric label."""
        return name in self._models

    def known(self, names: Iterable[str]) -> list[ServedModel]:
        """Those of some models, by name or worker's alias, that have been ready."""
        real_names = (self._names.get(name, name) for name in names)
        return [self._models[name] for name in real_names if name in self._models]

    def all(self) -> list[ServedModel]:
        return sorted(self._models.values(), key=lambda model: model.name)

    async def run(self) -> None:
        """Build what the connected workers describe, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            failed = False
            self._forget_unloaded()
            for session in list(self._connected()):
                for description in session.models.values():
                    failed |= not await self._learn(session, description)
            if failed:
                await asyncio.sleep(_RETRY_S)
                self._changed.set()
            elif self._models:
                self.settled = True

    async def _learn(self, session: WorkerSession, description: ModelDescription) -> bool:
        """Make the model ready; False when the worker could not be asked and it should be tried again."""
        for name in (description.name, *description.aliases):
            self._names.setdefault(name, description.name)
        known = self._models.get(description.name)
        if known is not None and known.description == description:
            return True
        if known is not None and self._is_served_as(known.description):
            # Prompts made for one of them would be wrong for the other; the newcomer waits until the old ones leave.
            logs.event(
                log,
                "worker_describes_model_differently",
                model=description.name,
                worker_id=session.worker_id,
                level=logging.ERROR,
            )
            return True
        try:
            tokenizer = await self._tokenizer(session, description.tokenizer_digest)
            prompts = self._prompt_builder(description, tokenizer)
        except (grpc.RpcError, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The session broke, which grpc.aio tells a pending call by cancelling it.
            logs.event(log, "tokenizer_not_fetched", model=description.name, level=logging.WARNING)
            return False
        except (minijinja.TemplateError, ValueError) as error:
            logs.event(log, "model_refused", model=description.name, error=str(error)[:500], level=logging.ERROR)
            return True
        if description.reasoning_parser not in ("", HARMONY, *SPLITTERS):
            logs.event(
                log,
                "reasoning_format_unknown_shown_as_content",
                model=description.name,
                reasoning_parser=description.reasoning_parser,
                level=logging.WARNING,
            )
        self._models[description.name] = ServedModel(description, prompts)
        logs.event(log, "model_ready", model=description.name, fast_tokenizer=tokenizer.is_fast)
        return True

    def _forget_unloaded(self) -> None:
        served = {name for session in self._connected() for name in session.models}
        for model in self.all():
            if model.description.parent in served and model.name not in served:
                del self._models[model.name]
                self._names = {name: of for name, of in self._names.items() if of != model.name}
                logs.event(log, "adapter_forgotten", model=model.name)

    def _is_served_as(self, description: ModelDescription) -> bool:
        return any(session.models.get(description.name) == description for session in self._connected())

    async def _tokenizer(self, session: WorkerSession, digest: str) -> Tokenizer:
        if digest not in self._tokenizers:
            data = await session.get_tokenizer(digest)
            loop = asyncio.get_running_loop()
            self._tokenizers[digest] = await loop.run_in_executor(self._executor, Tokenizer, data)
        return self._tokenizers[digest]

    @staticmethod
    def _prompt_builder(description: ModelDescription, tokenizer: Tokenizer) -> PromptBuilder:
        template = None
        if description.chat_template:
            template = ChatTemplate(
                description.chat_template,
                bos_token=description.bos_token,
                eos_token=description.eos_token,
                now=lambda: datetime.now(UTC),
            )
        return PromptBuilder(template, tokenizer, description.structural_marks)
