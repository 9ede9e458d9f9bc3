"""Takes in models as the program calls them: announces new ones, counts forwards, sets waiting points."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType

from torch import nn

from layerstep._torch import is_scripted
from layerstep.engine.discovery import Discovery, name_of
from layerstep.engine.point import Point, PointKind
from layerstep.engine.points import Points
from layerstep.engine.run import Run
from layerstep.errors import UnknownPath
from layerstep.module_paths.models import Model
from layerstep.views import Notice

__all__ = ["ModelIntake"]

MOST_TOLD = 5
MOST_FOUND = 20
"""Models that are announced; a program may make one for each step."""
MOST_MODELS = 256
"""Models that are taken in at once: each new one is looked at together with all that are alive."""


class ModelIntake:
    """Keeps the models of a session up to date with what the program calls."""

    def __init__(
        self,
        run: Run,
        points: Points,
        *,
        say: Callable[[Notice], None],
        rearm: Callable[[], None],
        begin_forward: Callable[[], None],
        raised: Callable[[BaseException], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._run = run
        self._points = points
        self._say = say
        self._rearm = rearm
        self._begin_forward = begin_forward
        """Called when a model that is no helper is called."""
        self._fail = fail
        self.discovery = Discovery(self._arrived, raised, lambda: self._run.is_silent)
        self._told: list[Point] = []
        self._set: set[int] = set()
        """The numbers of points that were said to be set."""
        self._found = 0
        self._is_full = False

    def count(self, module: nn.Module) -> None:
        """One more forward of a model; what was kept from the one before is dropped."""
        model = self._run.models.by_root(module)
        if model is not None:
            model.begin_forward()
            if not model.is_helper:
                self._run.seen_calls.clear()
                self._begin_forward()

    def add(self, root: nn.Module, name: str = "") -> Model:
        """Take in a model and set the points that waited for it."""
        model = self._run.models.add(root, name)
        self.resolve_points()
        self._rearm()
        return model

    def count_tapped(self, module: nn.Module) -> None:
        """A tap has met an outermost call; discovery, where it is on, counts it itself."""
        if not self.discovery.is_on:
            self.count(module)

    def _arrived(self, module: nn.Module, frame: FrameType, is_new: bool) -> None:
        """Discovery has met an outermost call."""
        if self._run.is_silent or not self._run.is_attached:
            return
        try:
            if is_new and self._run.models.owner_of(module) is None:  # a checkpoint calls parts by themselves
                self._meet(module, frame)
            self.count(module)
        except Exception as error:
            self._fail(error)

    def _meet(self, module: nn.Module, frame: FrameType) -> None:
        """A module that the program called by itself, for the first time."""
        if len(self._run.models) >= MOST_MODELS:
            self._tell_full()
            return
        one_before = self._run.models.main is not None and not self._run.models.are_several
        model = self._run.models.add(module, name_of(module, frame))
        if not model.is_helper:
            self._found += 1
            self._tell_found(model)
            if one_before and self._run.models.are_several and not self._is_quiet:
                self._say(Notice("paths now begin with the model's name", f"{model.name}.…"))
        self.resolve_points()
        if not model.is_helper:
            self._tell_missing()
        self._rearm()

    @property
    def _is_quiet(self) -> bool:
        """Were so many models found that the next ones are no news?"""
        return self._found > MOST_FOUND

    def _tell_found(self, model: Model) -> None:
        if self._found == MOST_FOUND + 1:
            self._say(Notice(f"{MOST_FOUND} models were found; more are taken in without a word"))
        if self._is_quiet or model.root is None:
            return
        kind, count = type(model.root).__name__, len(model.names)
        noun = "module" if count == 1 else "modules"
        one_call = "TorchScript: nothing inside it can be stopped at" if is_scripted(model.root) else ""
        self._say(Notice(f"found {kind} ({model.name}), {count} {noun}", one_call))

    def _tell_full(self) -> None:
        """Say once that the run has more models than are watched."""
        if self._is_full:
            return
        self._is_full = True
        text = f"{MOST_MODELS} models are alive; models that are called first from now on are left alone"
        self._say(Notice(text, "no point stops in them", level="warn"))

    def _tell_missing(self) -> None:
        """A model is here, and a point names a module that is not in it: say so now, once."""
        waiting = [
            point for point in self._points.shown if point.where and point.is_pending and point.trouble
        ]
        new = [point for point in waiting if point not in self._told]
        self._told += new
        for point in new[:MOST_TOLD]:
            self._say(Notice(f"{point.kind} {point.number} waits: {point.trouble}", level="warn"))
        if len(new) > MOST_TOLD:
            left = len(new) - MOST_TOLD
            self._say(Notice(f"{left} more points wait", "`info breaks`", level="warn"))

    def resolve_points(self) -> None:
        """Set the points that waited for a model, and say so."""
        waiting = {point for point in self._points if point.is_pending}
        for point, count in self._points.resolve(self._run.models):
            if point.kind is not PointKind.UNTIL:
                what = point.targets[0][0] if len(point.targets) == 1 else f"{count} modules"
                word = "is now set at" if point in waiting else "also takes"
                if point.number not in self._set or not self._is_quiet:
                    self._say(Notice(f"{point.kind} {point.number} {word} {what}"))
                self._set.add(point.number)

    def set_or_leave_pending(self, point: Point) -> None:
        """Look a new point up. It stays pending only while models may still come."""
        assert point.where is not None
        models = self._run.models
        try:
            found = point.where.look_up(models)
        except UnknownPath as error:
            ambiguous = "is the end of" in error.message
            if ambiguous or (not self.discovery.is_on and len(models)):
                self._points.delete(point)
                raise
            if models.main is not None and not ambiguous:
                point.trouble = str(error)
            return
        point.place(found, models)
        self._rearm()
