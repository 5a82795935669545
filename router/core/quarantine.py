"""Prompts that may have killed workers, kept from killing more.

The rule: a prompt is held for `period_s` once it was running on two workers when they died, and has not come to its
end anywhere meanwhile. A worker that was started anew is another one; several deaths of one incarnation (its stream
broke for many, its engine stalled twice) are one.

Whoever else was on the first worker is suspected with it, but is sent elsewhere, comes to its end there and is
cleared. So of many innocent requests only those are held that were beside the guilty one both times, which have failed
for their callers anyway; and a prompt that is sent often is never suspected, because it has just come to its end
somewhere. Prompts are told apart by a hash of all their tokens under their tenant's salt: nobody can have another
tenant's prompt held, and a shared beginning is no guilt. After its time a prompt is tried again; as long as it is
remembered, one more death holds it at once.

A prompt that fails on a second worker without killing it is suspected less harshly: `is_suspect` says that its failures
tell nothing of the workers that it meets next.

Cost: O(1) an input. Bounded by `_SUSPECTS` and `_CLEARED` prompts, the oldest of which are forgotten first: some 4 MB.
Not handled: prompts that differ a little (a counter in them) and kill alike; several of the same that run side by side
before the first has died; whatever kills only sometimes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

_SUSPECTS = 4_096
_CLEARED = 16_384
# Deaths further apart than this have nothing to do with each other.
_MEMORY_S = 600.0
_ENOUGH = 2


class PromptKey(NamedTuple):
    model: str
    # Of all tokens, with the tenant's salt.
    prompt_hash: int


@dataclass(slots=True)
class _Suspect:
    # Incarnations that failed it, and those of them that died with it; two of each are enough to know.
    failed_on: set[str] = field(default_factory=set)
    died_on: set[str] = field(default_factory=set)
    last_at: float = 0.0
    held_until: float = 0.0


class Quarantine:
    def __init__(self, period_s: float) -> None:
        """A period of 0: nothing is ever held."""
        self._period_s = period_s
        # Both oldest first.
        self._suspects: OrderedDict[PromptKey, _Suspect] = OrderedDict()
        self._cleared: OrderedDict[PromptKey, float] = OrderedDict()
        self._held_until = 0.0

    def __len__(self) -> int:
        """Prompts that are remembered, for whatever reason."""
        return len(self._suspects) + len(self._cleared)

    def failed(self, key: PromptKey, instance_id: str, *, died: bool, now: float) -> None:
        """A request with this prompt has failed on a worker; `died` says that the worker was lost or stood still."""
        if not self._period_s or self._cleared.get(key, float("-inf")) > now - _MEMORY_S:
            return
        suspect = self._recent(key, now)
        if suspect is None:
            suspect = _Suspect()
        suspect.last_at = now
        _note(suspect.failed_on, instance_id)
        if died:
            _note(suspect.died_on, instance_id)
            if len(suspect.died_on) == _ENOUGH:
                suspect.held_until = self._held_until = now + self._period_s
        self._suspects[key] = suspect
        self._suspects.move_to_end(key)
        if len(self._suspects) > _SUSPECTS:
            self._suspects.popitem(last=False)

    def finished(self, key: PromptKey, *, now: float) -> None:
        """A request with this prompt has come to its end as it should."""
        if not self._period_s:
            return
        self._suspects.pop(key, None)
        self._cleared[key] = now
        self._cleared.move_to_end(key)
        if len(self._cleared) > _CLEARED:
            self._cleared.popitem(last=False)

    def is_suspect(self, key: PromptKey, instance_id: str, *, now: float) -> bool:
        """Whether the prompt has failed on another worker than this one, and ended well nowhere since."""
        suspect = self._recent(key, now)
        return suspect is not None and not suspect.failed_on <= {instance_id}

    def holds_any(self, *, now: float) -> bool:
        """Cheap: False means that no prompt is held."""
        return now < self._held_until

    def held_for_s(self, key: PromptKey, *, now: float) -> float:
        """For how long the prompt is to be sent to nobody; 0.0: it may be sent."""
        suspect = self._suspects.get(key)
        return max(0.0, suspect.held_until - now) if suspect is not None else 0.0

    def num_held(self, *, now: float) -> int:
        """O(suspects)."""
        return sum(suspect.held_until > now for suspect in self._suspects.values())

    def _recent(self, key: PromptKey, now: float) -> _Suspect | None:
        suspect = self._suspects.get(key)
        return suspect if suspect is not None and suspect.last_at > now - _MEMORY_S else None


def _note(instances: set[str], instance_id: str) -> None:
    if len(instances) < _ENOUGH:
        instances.add(instance_id)
