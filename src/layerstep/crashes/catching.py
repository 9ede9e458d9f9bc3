"""Crashes of a session: stop where a module raises, before any handler sees it, and say why.

It costs nothing while nothing is raised: exceptions are met where the outermost calls are made (`discover`),
at the end of a `with console:` block, and at the end of the program. Only `catch exception in WHERE` and,
where a library leaves the outermost calls alone, `catch exception` put a tap on modules.
The exception itself stays what it was: the same object with the same arguments is raised on, with a note.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from layerstep._torch import modes_off
from layerstep.calls.events import Event, Phase
from layerstep.crashes.catch_checks import Check
from layerstep.crashes.inplace_writes import Ledger
from layerstep.crashes.raised import MARK, Raised
from layerstep.crashes.traceback_calls import (
    Crash,
    PassedCall,
    comes_from_module,
    crash_of,
    errors_behind,
    is_control_flow,
    leave_out_ours,
)
from layerstep.engine.discovery import name_of
from layerstep.engine.instrument import Instrument
from layerstep.engine.pause import Pause
from layerstep.engine.point import Point
from layerstep.engine.points import Catch
from layerstep.engine.stop import Caught, Stop
from layerstep.errors import first_line
from layerstep.hooks.fused import with_kernels
from layerstep.side_effects.guard import undisturbed
from layerstep.tensors.shapes import shape_line
from layerstep.visible import visible

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["EXCEPTION", "Crashes", "exception_check"]

EXCEPTION = "exception"
"""What a catchpoint for exceptions is called."""
MOST_SECONDS = 2.0
"""Spent in all on exceptions that the program may handle. A run out of memory takes a second to explain."""


class Crashes(Instrument):
    """What a session does about exceptions."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.ledger = Ledger()
        """The latest in-place writes, while `catch exception` is set."""
        self._seconds = 0.0
        """Spent so far on exceptions at which nothing stopped."""
        self._told: object = None
        """The note of the exception at which the last stop was: it need not be explained once more."""

    def leaving(self, error: BaseException, points: tuple[Point, ...]) -> None:
        """An exception leaves a module that `catch exception` has a tap on."""
        self._meet(error, points, by_default=False)

    def raised(self, error: BaseException) -> None:
        """An exception leaves an outermost module call.

        A program may handle thousands of them. Those beyond a bounded time are explained only if one ends it.
        """
        points = self._everywhere()
        if not points and not self._asks and self._seconds > MOST_SECONDS:
            return
        began = time.perf_counter()
        self._meet(error, points, by_default=True)
        if not points and not self._asks:
            self._seconds += time.perf_counter() - began

    def uncaught(self, error: BaseException) -> None:
        """An exception ends the program; also under a prompt that another thread has opened."""
        if self._session.run.pause is not None:
            return
        self._meet(error, self._everywhere(), by_default=True)
        if self._session.prompt.frontend is None and not is_control_flow(error):
            self._tell(error)

    def left(self, error: BaseException) -> None:
        """An exception leaves a `with console:` block; who catches it further out sees the note."""
        self._meet(error, self._everywhere(), by_default=True, any_kind=False)

    def examine(self, error: BaseException) -> None:
        """Post-mortem: look at an exception after the fact."""
        session = self._session
        try:
            leave_out_ours(error)
            crash = self._located(error)
            self._note(error, crash)
            stop = self._stop_at(crash, None)
            with modes_off():
                if self._asks:
                    session.standstill.hold(Pause(session.run.scope, stop, is_over=True))
                else:
                    session.prompt.show(stop)
        except Exception as bug:
            session.fail(bug)

    def apply(self) -> None:
        """Note writes while such a catchpoint is set, where a mode changes nothing."""
        if self._is_set and not self._kernels():
            self.ledger.start()
        else:
            self.ledger.stop()

    @property
    def _is_set(self) -> bool:
        return any(point.enabled for point in self._catchpoints())

    def _kernels(self) -> str:
        """What a function mode would change: compiled code is compiled again, a fused layer taken apart."""
        for model in self._session.run.models:
            if model.compiled:
                return f"{model.name} is compiled"
            if fused := with_kernels(module for _, module in model.names):
                return f"{type(fused[0]).__name__} may run as one kernel"
        return ""

    def clear(self) -> None:
        self.ledger.stop()

    def cost(self) -> list[str]:
        if not self.ledger.is_on:
            return [f"in-place writes are not noted: {self._kernels()}"] if self._is_set else []
        return ["in-place writes are noted, for `catch exception`: a function mode, about 5 µs a call"]

    @property
    def _asks(self) -> bool:
        """Is there a person to ask, or are there lines left?"""
        return self._session.prompt.frontend is not None or bool(self._session.prompt.script)

    def _everywhere(self) -> tuple[Point, ...]:
        return tuple(point for point in self._catchpoints() if point.where is None)

    def _catchpoints(self) -> list[Catch]:
        points = (point for point in self._session.points if isinstance(point, Catch))
        return [point for point in points if point.what == EXCEPTION]

    def _meet(
        self, error: BaseException, points: tuple[Point, ...], *, by_default: bool, any_kind: bool = True
    ) -> None:
        """Never raises but to quit: a bug of ours detaches and lets the exception go on.

        Without `any_kind` it stops only at exceptions that it can explain.
        """
        session = self._session
        was_sent_away = session.prompt.frontend is not None and not session.run.is_attached
        if was_sent_away or session.run.is_silent or is_control_flow(error) or is_noted(error):
            return
        try:
            leave_out_ours(error)
            with modes_off():
                crash = self._located(error)
                hit = self._ask(points, crash) if session.run.is_attached else None
                if hit is None and not by_default:
                    return
                is_ours = self._note(error, crash) or any_kind
                default = by_default and is_ours and self._asks and session.run.config.catch_exceptions
                if session.run.is_attached and (hit is not None or default):
                    self._stop(crash, hit)
        except Exception as bug:
            session.fail(bug)

    def _located(self, error: BaseException) -> Crash:
        session = self._session
        session.run.models.refresh()
        crash = replace(crash_of(error, session.run.models), writes=tuple(self.ledger.writes))
        outer = crash.stack[-1]
        is_whole = outer.module is not None and hasattr(outer.module, "_modules")
        if outer.module is not None and is_whole and session.run.models.owner_of(outer.module) is None:
            name = name_of(outer.module, outer.caller) if outer.caller is not None else ""
            session.run.models.add(outer.module, name)
        return crash

    def _ask(self, points: tuple[Point, ...], crash: Crash) -> Point | None:
        frame = crash.inner
        args, kwargs = (frame.args, frame.kwargs) if frame is not None else ((), {})
        module = frame.module if frame is not None else None
        event = Event(Phase.RAISED, module, args, kwargs, error=crash.error)
        match = self._session.decision.ask(points, event, None) if points else None
        return match.point if match is not None else None

    def _note(self, error: BaseException, crash: Crash) -> bool:
        """Add what is known to the exception, once; no if nothing is."""
        if is_noted(error):
            return True
        text = self._explained(crash)
        if text:
            error.add_note(MARK + text)
        return bool(text)

    def _explained(self, crash: Crash) -> str:
        """The exception in a few lines, for those who see it elsewhere."""
        from layerstep.crashes.explain.explaining import note_of  # twenty files, wanted only after a crash

        with self._session.run.evaluating(), undisturbed(self._session.run.models, deep=False):
            return visible(note_of(crash))

    def _stop(self, crash: Crash, hit: Point | None) -> None:
        session = self._session
        self._told = next(iter(reversed(getattr(crash.error, "__notes__", ()))), None)
        session.run.seen_calls.trim()
        session.standstill.stop(self._stop_at(crash, hit))

    def _stop_at(self, crash: Crash, hit: Point | None) -> Stop:
        session = self._session
        inner = crash.stack[0]
        owner = session.run.models.owner_of(inner.module) if inner.module is not None else None
        return Stop(
            Raised(crash, self._passed),
            list(crash.stack),
            Event(Phase.RAISED, inner.module, inner.args, inner.kwargs, error=crash.error),
            point=hit,
            reason=hit.label if hit is not None else "",
            forward=owner.forwards if owner is not None else 0,
            python=inner.python,
            error=crash.error,
        )

    def _passed(self, crash: Crash) -> list[PassedCall]:
        """The calls of this forward that were seen to finish before it was left."""
        running = {id(frame.module) for frame in crash.stack}
        return [
            (path, type(module).__name__, ", ".join(map(shape_line, kept[0][:4])), shape_line(kept[2]))
            for path, module in self._session.run.models.everything()
            if id(module) not in running and (kept := self._session.run.seen_calls.get(module)) is not None
        ]

    def _tell(self, error: BaseException) -> None:
        """Nobody can be asked: the explanation goes to the screen, before python shows the traceback."""
        session = self._session
        was_shown = any(note is self._told for note in getattr(error, "__notes__", ()))
        if was_shown or not is_noted(error):  # or nothing more than its message is known
            return
        try:
            session.prompt.show(self._stop_at(self._located(error), None))
        except Exception as bug:
            session.fail(bug)


def is_noted(error: BaseException) -> bool:
    """Was this exception dealt with already, or one that code outside of modules has wrapped in it?

    One that a module raises while another is being handled is a crash of its own.
    """
    wrapped = [error] if comes_from_module(error) else errors_behind(error)
    notes = [note for one in wrapped for note in getattr(one, "__notes__", ())]
    return any(isinstance(note, str) and note.startswith(MARK) for note in notes)


def exception_check(name: str) -> Check:
    """The question of `catch exception NAME`: an exception of this class, or of one derived from it."""

    def check(event: Event) -> Caught | None:
        kind = type(event.error)
        names = {base.__name__ for base in kind.__mro__} | {
            f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__
        }
        if event.error is None or (name and name not in names):
            return None
        return Caught(f"{kind.__name__}: {first_line(event.error)}")

    return check
