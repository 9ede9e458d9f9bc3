"""Arrivals: an outermost module is called. A new one is taken in and announced; forwards are counted."""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING

from torch import nn

from layerstep.engine._torch import is_scripted
from layerstep.engine.discover import name_of
from layerstep.engine.points import Point, PointKind
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Arrivals"]

MOST_TOLD = 5


class Arrivals:
    """Keeps the models of a session up to date with what the program calls."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told: list[Point] = []

    def count(self, module: nn.Module) -> None:
        """One more forward of a model; what was kept of the one before is let go."""
        model = self._session.models.by_root(module)
        if model is not None:
            model.begin_forward()
            if not model.is_helper:
                self._session.kept.clear()
                self._session.backpass.begin_forward()

    def meet(self, module: nn.Module, frame: FrameType) -> None:
        """A module that the program called by itself, for the first time."""
        session = self._session
        one_before = session.models.main is not None and not session.models.are_several
        model = session.models.add(module, name_of(module, frame))
        if not model.is_helper:
            kind, count = type(model.root).__name__, len(model.names)
            noun = "module" if count == 1 else "modules"
            one_call = "TorchScript: nothing inside it can be stopped at" if is_scripted(module) else ""
            session.say(Notice(f"found {kind} ({model.name}), {count} {noun}", one_call))
            if one_before and session.models.are_several:
                session.say(Notice("paths now begin with the model's name", f"{model.name}.…"))
        self.resolve_points()
        if not model.is_helper:
            self._tell_missing()
        session.rearm()

    def _tell_missing(self) -> None:
        """A model is here, and a point names a module that is not in it: say so now, once."""
        waiting = [point for point in self._session.points.shown if point.is_pending and point.trouble]
        new = [point for point in waiting if point not in self._told]
        self._told += new
        for point in new[:MOST_TOLD]:
            self._session.say(Notice(f"{point.kind} {point.number} waits: {point.trouble}", level="warn"))
        if len(new) > MOST_TOLD:
            left = len(new) - MOST_TOLD
            self._session.say(Notice(f"{left} more points wait", "`info breaks`", level="warn"))

    def resolve_points(self) -> None:
        """Set the points that waited for a model, and say so."""
        session = self._session
        waiting = {point for point in session.points if point.is_pending}
        for point, count in session.points.resolve(session.models):
            if point.kind is not PointKind.UNTIL:
                what = point.targets[0][0] if len(point.targets) == 1 else f"{count} modules"
                word = "is now set at" if point in waiting else "also takes"
                session.say(Notice(f"{point.kind} {point.number} {word} {what}"))
