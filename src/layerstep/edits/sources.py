"""Where `patch` takes a value from: an earlier forward, a file, another input, an expression."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from layerstep.edits.futures import Future, outermost_call, run_future
from layerstep.errors import BadArguments, UserError
from layerstep.expressions.scope import run_python
from layerstep.tensors.files import FileReference, read_tensors

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["SourceOf", "source_of"]

SourceOf = Callable[[str], Any]
"""The value for the output of a module, by its path."""


def source_of(session: Session, text: str) -> SourceOf:
    """Read `out@-1`, `forward 3`, `FILE`, `input EXPR` or an expression."""
    text = text.strip()
    if not text:
        raise BadArguments(
            "patch needs a source", "from out@-1, forward N, FILE, input EXPR or an expression"
        )
    if match := re.fullmatch(r"out@-(\d+)", text):
        return partial(_before, session, int(match[1]))
    if match := re.fullmatch(r"forward\s+(\d+)", text):
        return partial(_recorded, session, int(match[1]))
    if match := re.fullmatch(r"input\s+(.+)", text, re.DOTALL):
        return _of_other_input(session, match[1])
    if (file := FileReference.parse(text)) is not None:
        stored = read_tensors(file)
        return lambda path: stored
    value, _ = run_python(text, session.run.scope)
    return lambda path: value


def _before(session: Session, back: int, path: str) -> Any:
    found, module = session.run.models.find(path)
    owner = session.run.models.owner_of(module)
    forward = owner.forwards if owner is not None else 0
    return session.run.recordings.value_before(found, forward=forward, back=back)


def _recorded(session: Session, forward: int, path: str) -> Any:
    found, _ = session.run.models.find(path)
    entries = [e for e in session.run.recordings.of(found) if e.forward == forward and e.value is not None]
    if not entries:
        raise UserError(
            f"{found} is not recorded in forward {forward}", f"`record {found} --tensors` keeps it"
        )
    return entries[-1].value


def _of_other_input(session: Session, text: str) -> SourceOf:
    """The same model, run once on another input."""
    given, _ = run_python(text, session.run.scope)
    other: Future = run_future(session, outermost_call(session), given=given)

    def value(path: str) -> Any:
        found, _ = session.run.models.find(path)
        if (found, 1) not in other.outputs:
            raise UserError(f"{found} is not called with that input")
        return other.outputs[found, 1]

    return value
