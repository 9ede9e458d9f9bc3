"""What an explanation says, and how those who explain are found: by the message of the exception."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from layerstep.crashes.explain.facts import Facts

__all__ = ["Explainer", "Explanation", "explainers_of", "says"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why it was raised, in one line, and what to do about it."""

    cause: str
    fix: str = ""
    details: tuple[str, ...] = ()
    got: tuple[tuple[str, str], ...] = ()
    """What the module or the operation was given, each with its shape."""
    has: tuple[tuple[str, str], ...] = ()
    """What the module has of its own."""
    is_plain: bool = False
    """It is only the message: no explanation was found."""


Explainer = Callable[[Facts, "re.Match[str]"], Explanation | None]
"""Answers None where the message is the same, but the reason another."""

_explainers: list[tuple[re.Pattern[str], Explainer]] = []


def says(*patterns: str) -> Callable[[Explainer], Explainer]:
    """Explains the exceptions whose message has one of these in it."""

    def register(explainer: Explainer) -> Explainer:
        _explainers.extend((re.compile(pattern), explainer) for pattern in patterns)
        return explainer

    return register


def explainers_of(message: str) -> Iterator[tuple[Explainer, re.Match[str]]]:
    """Those who know this message, in the order of their files."""
    for pattern, explainer in _explainers:
        match = pattern.search(message)
        if match is not None:
            yield explainer, match
