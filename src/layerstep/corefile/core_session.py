"""An opened core file in a session: its models, its stack, and its pause."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from layerstep.calls.events import Event
from layerstep.calls.stack import Frame
from layerstep.corefile.rebuild import RestoredCall, RestoredCore
from layerstep.corefile.rerun import CoreRerun
from layerstep.crashes.raised import MARK, Raised
from layerstep.crashes.traceback_calls import Crash, Spot
from layerstep.engine.causes import AtLine, AtModule, InBackward
from layerstep.engine.instrument import Instrument
from layerstep.engine.pause import Pause
from layerstep.engine.stop import Cause, Shown, Stop
from layerstep.expressions.recordings import Recorded
from layerstep.module_paths.models import Models
from layerstep.views import Group, Notice, Text, View

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["CoreFile", "OpenedCore", "opened_in"]


class CoreFile(Instrument):
    """The core file that a session has opened, if it has."""

    def __init__(self, session: Session) -> None:
        self.opened: OpenedCore | None = None


def opened_in(session: Session) -> OpenedCore | None:
    """The core file that a session stands in now; None in a run, also when that is the file's module."""
    opened = session.instruments.get(CoreFile).opened
    return opened if opened is not None and session.run.pause is opened.pause else None


class OpenedCore:
    """A core file that a session has open."""

    def __init__(self, core: RestoredCore, rerun: CoreRerun | None) -> None:
        self.core = core
        self.rerun = rerun
        self.pause: Pause | None = None

    def enter(self, session: Session) -> None:
        """Make the session's models those of the file."""
        session.instruments.get(CoreFile).opened = self
        self._use_models(session, self.core.roots)
        for module, (args, kwargs, output) in self.core.calls:
            session.run.seen_calls.keep(module, args, kwargs, output)

    def recall(self, session: Session) -> None:
        """What the run had counted and recorded and what was typed in it; once, before anything else."""
        session.run.training.counted_before = int(self.core.contents["stop"]["step"])
        session.prompt.history.extend(map(str, self.core.contents["history"]))
        for entry in self.core.recordings:
            session.run.recordings.add(
                Recorded(
                    str(entry["path"]),
                    int(entry["forward"]),
                    entry["facts"],
                    value=entry["value"],
                    nbytes=int(entry["nbytes"]),
                )
            )

    def use_code(self, session: Session) -> None:
        """Make the session's model the one that has the code."""
        assert self.rerun is not None
        stop = self.core.contents["stop"]
        self._use_models(session, [(self.rerun.model, str(stop["model"]), int(stop["forward"]))])

    @staticmethod
    def _use_models(session: Session, roots: list[tuple[nn.Module, str, int]]) -> None:
        session.run.seen_calls.clear()
        session.run.models.become(roots)
        session.intake.resolve_points()
        session.rearm()

    def make_pause(self, session: Session, *, is_start: bool) -> Pause:
        """The stop of the file; `is_start` if it was shown before."""
        stored = self.core.contents["stop"]
        stack = [_frame(session.run.models, call) for call in self.core.stack]
        error = _exception(self.core.exception)
        event = self._event(error)
        stop = Stop(
            self._cause(session, stack, event, error),
            stack,
            event,
            reason=str(stored["reason"]),
            trouble=str(stored["trouble"]),
            forward=int(stored["forward"]),
            python=stack[0].python,
            error=error,
        )
        selected = int(stored["selected"])
        self.pause = Pause(session.run.scope, stop, selected=selected, is_start=is_start, is_over=True)
        return self.pause

    def _event(self, error: Exception | None) -> Event | None:
        first = self.core.stack[0]
        if self.core.phase is None or first.module is None:
            return None
        output = first.output if first.has_output else None
        return Event(self.core.phase, first.module, first.args, first.kwargs, output, first.call, error)

    def _cause(
        self, session: Session, stack: list[Frame], event: Event | None, error: Exception | None
    ) -> Cause:
        if error is not None:
            notes = [str(note) for note in (self.core.exception or {})["notes"]]
            return RestoredCrash(Crash(error, _spots(stack[0]), tuple(stack)), notes=notes)
        if event is None:
            return AtLine()
        if event.call is not None:
            return InBackward(event.call, session.backward_pass.is_ready)
        return AtModule()


@dataclass(frozen=True, slots=True)
class RestoredCrash(Raised):
    """A crash of another run. It was explained where it happened, with the code, which is not here."""

    notes: list[str] = field(default_factory=list)

    def view(self, stop: Stop, shown: Shown) -> View:
        view = Raised(self.crash).view(stop, shown)
        told = next((note for note in self.notes if note.startswith(MARK)), "")
        if not told or not isinstance(view, Group) or not isinstance(view.views[0], Notice):
            return view
        first, _, more = told.removeprefix(MARK).partition("\n")
        rest = (Text(more),) if more else ()
        return Group((Notice(first, level="error"), *view.views[1:], *rest))


def _frame(models: Models, call: RestoredCall) -> Frame:
    frame = Frame(
        models,
        call.module,
        args=call.args,
        kwargs=call.kwargs,
        state=call.state,
        caller=call.caller,
        depth=call.depth,
        hooked=call.hooked,
        call=call.call,
    )
    if call.has_output:
        frame.output = call.output
    frame.path = call.path
    if call.within is not None:
        frame.within, frame.within_line = call.within, call.within.f_lineno
    return frame


def _spots(frame: Frame) -> tuple[Spot, ...]:
    """The user's line that raised. The frames below it are not in the file."""
    python = frame.python
    return (Spot(python, python.f_lineno, python.f_lasti),) if python is not None else ()


def _exception(stored: dict[str, Any] | None) -> Exception | None:
    """An exception of the same name and message; Python's own class, if there is one of that name."""
    if stored is None:
        return None
    kind = getattr(builtins, str(stored["type"]), None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = type(str(stored["type"]), (Exception,), {})
    try:
        error: Exception = kind(str(stored["message"]))
    except TypeError:  # its class needs more than a message
        error = type(str(stored["type"]), (Exception,), {})(str(stored["message"]))
    for note in stored["notes"]:
        error.add_note(str(note))
    return error
