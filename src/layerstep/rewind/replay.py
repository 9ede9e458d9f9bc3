"""A forward that is over, run once more on copies: look at what each module got and returned.

It runs with the inputs, buffers and random streams of its beginning, and with the weights as they are now.
Nothing stops in it, and no hook of the program is called. What its modules returned stays in view until the
run goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from layerstep._torch import modes_off
from layerstep._torch.tensors import is_tensor
from layerstep.calls.events import Event, Phase
from layerstep.calls.stack import Frame
from layerstep.engine.causes import AtModule
from layerstep.engine.instrument import Instrument
from layerstep.engine.stop import Shown, Stop
from layerstep.errors import UserError, first_line
from layerstep.hooks.temporary import watching_every_call
from layerstep.module_paths.models import Models
from layerstep.rerun.whole_call import CallStart, note_start, rerunning
from layerstep.tensors.clones import clone_of
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import shape_line
from layerstep.views import Column, Group, Notice, Table, View

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Replays", "replay", "replay_until"]

MOST_ROWS = 60


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the second run. Of its tensors copies are kept, because later layers may overwrite them."""

    module: nn.Module
    args: Any
    kwargs: dict[str, Any]
    output: Any


class Replays(Instrument):
    """Keeps the beginning of the last forward, once it is turned on."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.is_on = False
        self.start: CallStart | None = None

    @property
    def wants_forwards(self) -> bool:
        return self.is_on

    def begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        owner = self._session.run.models.owner_of(module)
        if not self.is_on or owner is None or owner.is_helper:
            return
        inside = [part for _, part in owner.names]
        try:
            with modes_off():
                self.start = note_start(module, args, kwargs, forward=owner.forwards, inside=inside)
        except UserError:  # an input that cannot be copied
            self.start = None

    def turn(self, is_on: bool) -> None:
        self.is_on = is_on
        self.start = self.start if is_on else None
        self._session.rearm()

    def clear(self) -> None:
        self.start = None

    def cost(self) -> list[str]:
        what = "copies of its inputs, and of its buffers while it trains, are kept until the next one"
        return [f"`replay`: at the beginning of each forward, {what}"] if self.is_on else []


def replay(session: Session, number: int | None) -> View:
    """Run the forward again, and list its calls."""
    start, calls, trouble = _run(session, number)
    models = session.run.models
    rows = tuple(_row(models, call) for call in calls[:MOST_ROWS])
    left = f"; {len(calls) - MOST_ROWS} more are not listed" if len(calls) > MOST_ROWS else ""
    columns = (Column("path", "path"), Column("type"), Column("in"), Column("out"))
    said = Notice(f"forward {start.forward} again, on copies: {len(calls)} calls{left}", _weights(session))
    return Group((said, Table(columns, rows), *trouble))


def _row(models: Models, call: _Call) -> tuple[str, ...]:
    inp = call.args[0] if len(call.args) == 1 else call.args
    return models.path_of(call.module), type(call.module).__name__, shape_line(inp), shape_line(call.output)


def replay_until(session: Session, module: nn.Module) -> View:
    """Run the forward again, and show the last call of a module as a stop would."""
    start, calls, trouble = _run(session, None)
    found = [call for call in calls if call.module is module]
    if not found:
        path = session.run.models.path_of(module)
        raise UserError(f"{path} was not called in forward {start.forward}", "`replay` lists the calls")
    call, config = found[-1], session.run.config
    frame = Frame(session.run.models, module, args=call.args, kwargs=call.kwargs, output=call.output)
    frame.state = "done"
    event = Event(Phase.EXIT, module, call.args, call.kwargs, call.output)
    reason = "replay" if len(found) == 1 else f"replay, the last of {len(found)} calls"
    stop = Stop(AtModule(), [frame], event, reason=reason, forward=start.forward)
    shown = Shown(config.sample_above, config.copy_input_bytes)
    hint = f"`{frame.path}.input` and `{frame.path}.output` are those of this run until `continue`"
    return Group((stop.cause.view(stop, shown), Notice(hint, _weights(session)), *trouble))


def _run(session: Session, number: int | None) -> tuple[CallStart, list[_Call], list[View]]:
    replays = session.instruments.get(Replays)
    start = replays.start
    if start is None:
        hint = (
            "it is, from the next forward on"
            if replays.is_on
            else "`replay on` keeps it, from the next one on"
        )
        raise UserError("the beginning of the last forward was not kept", hint)
    if number is not None and number != start.forward:
        raise UserError(f"only the last forward is kept, and that is {start.forward}")
    calls: list[_Call] = []
    trouble: list[View] = []
    left = session.run.config.keep_bytes

    def ended(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        nonlocal left
        with modes_off(), observing():
            copies = _Copies(left)
            calls.append(_Call(module, copies.of(args), copies.of(kwargs), copies.of(output)))
            left = copies.left

    with rerunning(session, start), watching_every_call(ended):
        args, kwargs = start.arguments()
        try:
            start.module(*args, **kwargs)
        except Exception as error:  # of the model; it may have raised in the run, too
            line = first_line(error)
            trouble.append(Notice(f"it raised {type(error).__name__}: {line}", level="warn"))
    for call in calls:
        session.run.seen_calls.keep(call.module, call.args, call.kwargs, call.output)
    return start, calls, trouble


class _Copies:
    """Copies of tensors in plain containers, as far as the room goes; beyond it the tensors themselves."""

    def __init__(self, left: int) -> None:
        self.left = left

    def of(self, value: Any, depth: int = 4) -> Any:
        if is_tensor(value):
            self.left -= value.numel() * value.element_size()
            return clone_of(value) if self.left > 0 else value.detach()
        if depth and type(value) in (tuple, list):
            return type(value)(self.of(item, depth - 1) for item in value)
        if depth and type(value) is dict:
            return {key: self.of(item, depth - 1) for key, item in value.items()}
        return value


def _weights(session: Session) -> str:
    return "the weights are those of now" if session.run.training.count else ""
