"""An opened core file in a session: its models, its stack, and its pause."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from torch import nn

from layerstep.corefile.rebuild import RestoredCall, RestoredCore
from layerstep.corefile.rerun import CoreRerun
from layerstep.crashes.traceback_calls import Crash, Spot
from layerstep.engine.events import Event
from layerstep.engine.models import Models
from layerstep.engine.pause import Pause
from layerstep.engine.recordings import Recorded
from layerstep.engine.stack import Frame
from layerstep.engine.training import Steps

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["MEMORY", "OpenedCore", "opened_in"]

MEMORY = "core"
"""The name under which a session keeps its opened file."""


def opened_in(session: Session) -> OpenedCore | None:
    """The core file whose stop a session shows now; None in a run, also in a rerun of the file's module."""
    opened = session.memory.get(MEMORY)
    is_here = isinstance(opened, OpenedCore) and session.pause is opened.pause
    return opened if is_here else None


class _StoredSteps(Steps):
    """Keeps the count of the run."""

    def __init__(self, session: Session, count: int) -> None:
        super().__init__(session.fail)
        self._stored = count

    @property
    def count(self) -> int:
        return self._stored


class OpenedCore:
    """A core file that a session has open."""

    def __init__(self, core: RestoredCore, rerun: CoreRerun | None) -> None:
        self.core = core
        self.rerun = rerun
        self.wanted: dict[str, Any] | None = None
        """The keyword arguments that `again` replaces; None until it is typed."""
        self.pause: Pause | None = None

    def enter(self, session: Session) -> None:
        """Make the session's models those of the file."""
        core = self.core
        session.memory[MEMORY] = self
        self._use_models(session, core.roots)
        for module, (args, kwargs, output) in core.calls:
            session.kept.keep(module, args, kwargs, output)

    def recall(self, session: Session) -> None:
        """Restore the run's counts, recordings and history; once, before anything else."""
        session.training = _StoredSteps(session, int(self.core.contents["stop"]["step"]))
        session.history.extend(map(str, self.core.contents["history"]))
        for entry in self.core.recordings:
            session.recordings.add(
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
        names = dict(session.scope)
        session.kept.clear()
        session.models = Models()
        for root, name, forwards in roots:
            session.models.add(root, name).had_forwards(forwards)
        session.scope = session.scope_at(None)
        session.scope.update(names)
        session.arrivals.resolve_points()
        session.rearm()

    def make_pause(self, session: Session, *, is_start: bool) -> Pause:
        """Make the pause of the file; `is_start` if it was shown before."""
        core = self.core
        stop, error = core.contents["stop"], _exception(core.exception)
        stack = [_frame(session.models, call) for call in core.stack]
        first = core.stack[0]
        event = None
        if core.phase is not None and first.module is not None:
            output = first.output if first.has_output else None
            event = Event(core.phase, first.module, first.args, first.kwargs, output, first.call, error)
        self.pause = Pause(
            session.scope,
            stack,
            event,
            reason=str(stop["reason"]),
            trouble=str(stop["trouble"]),
            forward=int(stop["forward"]),
            python=stack[0].python,
            selected=int(stop["selected"]),
            is_start=is_start,
            is_over=True,
            crash=Crash(error, _spots(stack[0]), tuple(stack)) if error is not None else None,
        )
        return self.pause


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
