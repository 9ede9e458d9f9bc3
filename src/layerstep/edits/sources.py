"""Where `patch` takes a value from: an earlier forward, a file, another input, an expression."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from layerstep.calls.events import Event, Phase
from layerstep.calls.stack import Frame
from layerstep.edits.exchange import floating_tensors
from layerstep.edits.futures import Future, outermost_call, run_future
from layerstep.engine.points import Edit
from layerstep.errors import BadArguments, UserError
from layerstep.expressions.scope import run_python
from layerstep.module_paths.where import Where
from layerstep.tensors.files import FileReference, read_tensors

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["SourceOf", "inputs_of", "source_of"]

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


class _KeepsInput:
    """Stands where an edit would, and keeps what its module is given."""

    def __init__(self) -> None:
        self.done, self.why_not = 0, ""
        self.inputs: dict[str, Tensor] = {}

    def __call__(self, event: Event, place: Frame) -> Event | None:
        found = floating_tensors((event.args, event.kwargs), "inp")
        if found:
            self.inputs.setdefault(place.path.partition("|")[0], found[0][1].detach().clone())
        return None


def inputs_of(session: Session, text: str, paths: Sequence[str]) -> SourceOf:
    """What modules are given where the model runs on another input: `input EXPR`."""
    match = re.fullmatch(r"input\s+(.+)", text.strip(), re.DOTALL)
    if match is None:
        raise BadArguments(
            "a head is patched from another input",
            "patch PATH --head 3 from input EXPR; records keep outputs",
        )
    given, _ = run_python(match[1], session.run.scope)
    keeps = _KeepsInput()
    edits = [Edit(Where.parse(path), phase=Phase.ENTER, change=keeps, set_by="") for path in paths]
    run_future(session, outermost_call(session), edits, given=given, keep=False)

    def value(path: str) -> Any:
        if path not in keeps.inputs:
            raise UserError(f"{path} is not called with that input")
        return keeps.inputs[path]

    return value


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
