"""Stop strings, found in a stream of text.

The match that ends first wins; of those that end together, the one that starts first. Text is held back exactly as
long as it can still become a part of a stop string, at most the longest stop minus one character, and no part of a
match is ever given out. Any split of the same text gives the same result.

The machine is Aho and Corasick's: its depth in the trie of all stops is the length of the longest suffix that is
the beginning of a stop, which is exactly what must be held back. Linear in the text, whatever the stops.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


class StopStrings:
    """The automaton of one set of stops; immutable, so that the choices of one request share it."""

    __slots__ = ("depth", "fallback", "longest_match", "moves", "opening")

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` holds at least one string, none of them empty."""
        assert stops
        assert all(stops)
        self.moves: list[dict[str, int]] = [{}]
        self.depth = [0]
        # Characters of the longest stop that ends at a node; 0: none does.
        self.longest_match = [0]
        for stop in stops:
            node = 0
            for character in stop:
                if character not in self.moves[node]:
                    self.moves[node][character] = len(self.moves)
                    self.moves.append({})
                    self.depth.append(self.depth[node] + 1)
                    self.longest_match.append(0)
                node = self.moves[node][character]
            self.longest_match[node] = len(stop)
        # Where the automaton goes on when a character does not fit: the longest proper suffix that is a node.
        self.fallback = [0] * len(self.moves)
        level = list(self.moves[0].values())
        for node in level:  # grows while it is walked: breadth first
            for character, child in self.moves[node].items():
                level.append(child)
                suffix = self.fallback[node]
                while suffix and character not in self.moves[suffix]:
                    suffix = self.fallback[suffix]
                self.fallback[child] = self.moves[suffix].get(character, 0)
                self.longest_match[child] = self.longest_match[child] or self.longest_match[self.fallback[child]]
        self.opening = re.compile("[" + re.escape("".join({stop[0] for stop in stops})) + "]")


class StopMatcher:
    """Passes text on until a stop string is found in it."""

    __slots__ = ("_automaton", "_held", "_node", "matched")

    def __init__(self, automaton: StopStrings) -> None:
        self._automaton = automaton
        self._node = 0
        self._held = ""
        self.matched = False

    def feed(self, text: str) -> str:
        """What may be shown now. After a match, `matched` is set and nothing more is shown, whatever is fed."""
        if self.matched:
            return ""
        automaton, node = self._automaton, self._node
        start = 0
        if node == 0:
            # Most text holds no beginning of a stop: one search instead of a walk.
            opening = automaton.opening.search(text)
            if opening is None:
                return text
            start = opening.start()
        moves, fallback, longest_match = automaton.moves, automaton.fallback, automaton.longest_match
        for position in range(start, len(text)):
            character = text[position]
            while node and character not in moves[node]:
                node = fallback[node]
            node = moves[node].get(character, 0)
            if longest_match[node]:
                self.matched = True
                seen = self._held + text[: position + 1]
                self._held = ""
                return seen[: len(seen) - longest_match[node]]
        self._node = node
        seen = self._held + text
        shown = len(seen) - automaton.depth[node]
        self._held = seen[shown:]
        return seen[:shown]

    def finish(self) -> str:
        """The text that was held back for a stop that never came."""
        held, self._held, self._node = self._held, "", 0
        return held
