"""Instruments: what a feature keeps for a session, and what it puts on the run.

A session has one of each class that was asked for. The engine knows no feature: it calls an instrument when
one of these moments comes, and only those that have something to do then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from torch import nn

from layerstep.calls.events import Event, Phase
from layerstep.engine.pause import Pause
from layerstep.engine.point import Point
from layerstep.engine.resume import Resume
from layerstep.views import Notice

__all__ = ["Instrument", "Instruments", "Measuring"]


class Instrument:
    """Takes part in a session. A feature overrides what it needs."""

    command = ""
    """The word that turns it on, if what it does takes time in each operation or step."""

    def prepare(self) -> None:
        """The points or the step have changed; the plan is about to be made."""

    def apply(self) -> None:
        """The taps are on: install what else the points need, and no more."""

    def clear(self) -> None:
        """Take everything off the run."""

    def cost(self) -> list[str]:
        """What is installed now, in words."""
        return []

    @property
    def has_modes(self) -> bool:
        """Is a mode of its own on, beyond the call in which it was put on? Then every call must be seen."""
        return False

    @property
    def wants_ops(self) -> bool:
        """Does it follow operations? Then compiled code must run eagerly."""
        return False

    @property
    def wants_forwards(self) -> bool:
        """Must it hear when an outermost call begins, though no point is at a module?"""
        return False

    def begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """An outermost call begins."""

    def called(self, phase: Phase, points: tuple[Point, ...], module: nn.Module, frame: FrameType) -> None:
        """A tapped module is entered, or left while a mode lies open; `frame` is that of the call."""

    def arriving(self, event: Event, frame: FrameType) -> None:
        """The run is about to stop at a module."""

    def came_back(self) -> None:
        """The run is at an earlier place of its forward: what was noted of its values is out of date."""

    def stopped(self) -> list[Notice]:
        """The run stands still: what is to be said before the stop is shown."""
        return []

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Meanwhile the thread is at the prompt and runs our code."""
        yield

    def resuming(self, pause: Pause, resume: Resume) -> None:
        """The run is about to go on."""

    def settle(self) -> None:
        """The run goes on: put on in this thread what is wanted from here on."""

    def raised(self, error: BaseException) -> None:
        """An exception leaves an outermost call."""

    def leaving(self, error: BaseException, points: tuple[Point, ...]) -> None:
        """An exception leaves a module that points ask about."""


@runtime_checkable
class Measuring(Protocol):
    """An instrument that measures; what it found is shown at the end of the run if it was not asked for."""

    is_on: bool

    def unread(self) -> list[str]:
        """The lines that show what was measured and has not been shown yet."""

    def clear(self) -> None:
        """It is over: what is not complete now never will be."""

    def shortfall(self) -> str:
        """At the end of a run: what was to be measured and was not, or nothing."""


I = TypeVar("I", bound=Instrument)  # noqa: E741


S = TypeVar("S")
"""Whose instruments they are: each is made with it."""


class Instruments(Generic[S]):
    """The instruments of a session, found by their class."""

    def __init__(self, session: S) -> None:
        self._session = session
        self._all: dict[Callable[..., Instrument], Instrument] = {}
        self._at: dict[str, tuple[Callable[..., Any], ...]] = {}

    def __iter__(self) -> Iterator[Instrument]:
        return iter(list(self._all.values()))

    def get(self, kind: Callable[[S], I]) -> I:
        """The instrument of that class; it is made when it is first asked for."""
        found = self._all.get(kind)
        if found is None:
            found = self._all[kind] = kind(self._session)
            self._at.clear()
        return cast(I, found)

    def put(self, instrument: Instrument) -> None:
        """Use this one from now on, in place of another of its class."""
        self._all[type(instrument)] = instrument
        self._at.clear()

    def at(self, moment: str) -> tuple[Callable[..., Any], ...]:
        """Those that have something to do at a moment; it is asked at each event, so the answer is kept."""
        found = self._at.get(moment)
        if found is None:
            plain = getattr(Instrument, moment)
            of_class = (each for each in self if getattr(type(each), moment) is not plain)
            found = self._at[moment] = tuple(getattr(each, moment) for each in of_class)
        return found
