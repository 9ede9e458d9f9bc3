"""Globs over paths: `*` stays within one segment, `**` crosses them.

Most patterns become a regular expression. That takes exponential time where several wildcards can share the
same characters, so those are matched state by state: the time is linear in the path, whatever the pattern.
"""

from __future__ import annotations

import re

__all__ = ["Glob"]

_PIECES = re.compile(r"(\*\*\.|\*{2,}|\*|\?|\[[^\]]*\])")
_REPEATED = re.compile(r"(?:\*\*\.){2,}")
MOST_SHARED = 2
"""Of wildcards that can share characters in a regular expression: its time grows by this power."""


class Glob:
    """A pattern, anchored at the beginning of a segment and at the end of the path."""

    def __init__(self, text: str) -> None:
        self._pieces = [piece for piece in _PIECES.split(_REPEATED.sub("**.", text)) if piece]
        self._pattern = re.compile(rf"(?:^|(?<=\.)){''.join(map(_as_regex, self._pieces))}$")
        self._states = None if _shared(self._pieces) <= MOST_SHARED else _States(self._pieces)

    def search(self, path: str) -> bool | None:
        """True if the path fits, else None: as a compiled pattern answers."""
        fits = self._pattern.search(path) if self._states is None else self._states.fits(path)
        return True if fits else None

    match = search


def _as_regex(piece: str) -> str:
    if piece == "**.":
        return r"(?:[^.]+\.)*"
    if piece.startswith("**"):
        return ".*"
    if piece == "*":
        return "[^.]*"
    if piece == "?":
        return "[^.]"
    if piece.startswith("["):
        return "[^" + piece[2:] if piece.startswith("[!") else piece
    return re.escape(piece)


def _shared(pieces: list[str]) -> int:
    """How many wildcards may take over characters from each other; one that ends at a dot does not."""
    after = [*pieces[1:], "."]
    return sum(
        piece.startswith("**") or (piece == "*" and not following.startswith("."))
        for piece, following in zip(pieces, after, strict=True)
    )


class _States:
    """The pattern as a row of states, all of which are followed at once, a bit for each."""

    def __init__(self, pieces: list[str]) -> None:
        self._takes: list[re.Pattern[str]] = []
        """What a state needs to see to go on to the next one."""
        self._stays: list[re.Pattern[str] | None] = []
        """What it may see and stay."""
        self._free = self._starts = self._inside = 0
        """The states that may be passed over; those at the start of any segment, and those inside one."""
        self._add_segments()
        for piece in pieces:
            self._add(piece)
        self._end = 1 << len(self._takes)
        self._known: dict[str, tuple[int, int]] = {}

    def _add(self, piece: str) -> None:
        if piece == "**.":
            self._add_segments()
        elif piece.startswith("*"):
            self._free |= 1 << len(self._takes)
            any_sign = "." if piece.startswith("**") else "[^.]"
            self._state(any_sign, any_sign)
        elif piece == "?" or piece.startswith("["):
            self._state(_as_regex(piece))
        else:
            for sign in piece:
                self._state(re.escape(sign))

    def _add_segments(self) -> None:
        """Any number of whole segments: from the dot behind one it goes on, or through another one."""
        self._starts |= 1 << len(self._takes)
        self._state("[^.]")
        self._inside |= 1 << len(self._takes)
        self._state(r"\.", "[^.]")

    def _state(self, takes: str, stays: str | None = None) -> None:
        self._takes.append(re.compile(takes, re.DOTALL))
        self._stays.append(re.compile(stays, re.DOTALL) if stays is not None else None)

    def fits(self, path: str) -> bool:
        now = self._closed(1)
        for sign in path:
            takes, stays = self._masks(sign)
            gone = now & takes
            now = self._closed(gone << 1 | (gone & self._inside) >> 1 | (now & stays))
            if not now:
                return False
        return bool(now & self._end)

    def _masks(self, sign: str) -> tuple[int, int]:
        if sign not in self._known:
            takes = sum(1 << i for i, one in enumerate(self._takes) if one.match(sign))
            stays = sum(1 << i for i, one in enumerate(self._stays) if one is not None and one.match(sign))
            self._known[sign] = takes, stays
        return self._known[sign]

    def _closed(self, states: int) -> int:
        """With the states behind those that may be passed over."""
        while True:
            more = states | (states & self._free) << 1 | (states & self._starts) << 2
            if more == states:
                return states
            states = more
