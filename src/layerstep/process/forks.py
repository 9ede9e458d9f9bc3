"""Forks that layerstep makes: such a child keeps the session. Every other child drops it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["child_keeps_session", "keeps_session"]

_keeps = False


def keeps_session() -> bool:
    """Asked in a new child: is it a checkpoint, in which the session lives on?"""
    return _keeps


@contextlib.contextmanager
def child_keeps_session() -> Iterator[None]:
    """A process that is forked in this block keeps the session, its prompt and its Ctrl-C."""
    global _keeps
    _keeps = True
    try:
        yield
    finally:
        _keeps = False
