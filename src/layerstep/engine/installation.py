"""Arming: carry out a plan, and what else a plan needs of torch, with a word to the user."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from layerstep._torch import restore_stance, take_eager_stance
from layerstep._torch.process_state import global_hooks_silent
from layerstep.engine.events import Phase
from layerstep.engine.instrument import Measuring
from layerstep.engine.plan import make_plan
from layerstep.engine.random_streams import OtherThreads, RandomState
from layerstep.engine.stepper import Intent, Reach
from layerstep.engine.taps import Sink, Taps
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.pause import Pause
    from layerstep.engine.points import Point
    from layerstep.engine.session import Session

__all__ = ["Installation"]


class Installation:
    """What is installed for a session now."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.sink = Sink(session.report, self._play_beside, session.leaving, session.overwritten_inputs.note)
        self.taps = Taps(self.sink)
        self.at_backward: dict[int, tuple[Point, ...]] = {}
        """The points at the backward of each module, by its id."""
        self.is_eager = False
        """Compiled code, if there is any, runs eagerly on our account."""
        self._stance_before: Any = None
        self._told: set[str] = set()
        self._holds = 0
        self._enclosing: list[weakref.ref[nn.Module]] = []
        """The modules that ran at the last stop: `finish` needs their taps until it ends."""

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Install nothing meanwhile, because the tables of hooks are out of sight; it is done afterwards."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                self._session.rearm()

    def apply(self, intent: Intent, pause: Pause | None) -> None:
        """Install what the points and the intent need, and remove the rest."""
        if self._holds:
            return
        if pause is not None:
            self._enclosing = [weakref.ref(frame.module) for frame in pause.stack if frame.module is not None]
        enclosing = [module for each in self._enclosing if (module := each()) is not None]
        models = self._session.run.models
        has_modes = any(each.has_modes for each in self._session.instruments)
        plan = make_plan(
            models, self._session.points, intent=intent, enclosing=enclosing, has_modes=has_modes
        )
        self.taps.roots = {id(root) for model in models if (root := model.root) is not None}
        self.taps.apply(plan)
        if not any(Phase.INPUTS in wanted for _, wanted in plan.values()):
            self._session.overwritten_inputs.clear()
        self.sink.listening = intent.reach is not Reach.NOTHING or has_modes
        active = [point for point in self._session.points if point.enabled and point.phase.is_backward]
        self.sink.noting = bool(active)
        self.at_backward = {
            key: tuple(point for point in active if key in dict.fromkeys(k for _, k in point.targets))
            for key in {key for point in active for _, key in point.targets}
        }
        by_ops = any(
            each.wants_ops for each in self._session.instruments
        )  # dynamo would compile again, with our mode in it
        for instrument in self._session.instruments:
            instrument.apply()
        compiled = by_ops or any(model.compiled for model in models)
        hidden = self._session.compiled.with_models and self._is_armed(intent)
        self._take_stance(wanted=bool(plan and compiled) or bool(hidden))

    def clear(self) -> None:
        self.taps.clear()
        self.sink.listening = self.sink.noting = False
        self.at_backward = {}
        self._session.overwritten_inputs.clear()
        for instrument in self._session.instruments:
            instrument.clear()
        self._take_stance(wanted=False)

    def _take_stance(self, *, wanted: bool) -> None:
        if wanted and not self.is_eager:
            self._stance_before = take_eager_stance()
            self.is_eager = self._stance_before is not None
        elif not wanted and self.is_eager:
            restore_stance(self._stance_before)
            self.is_eager = False
        if self.is_eager:
            self._tell_eager()
        elif any(isinstance(each, Measuring) and each.is_on for each in self._session.instruments):
            for function in self._session.compiled.with_models:
                text = f"compiled function {function}: the modules that it calls are not measured"
                self._tell(text, "`torch.compile(model)` is measured as one call, as a whole")

    def _is_armed(self, intent: Intent) -> bool:
        """Is something wanted of modules, also of those that are not known yet?"""
        return intent.reach is not Reach.NOTHING or any(point.enabled for point in self._session.points)

    @property
    def has_compiled_code(self) -> bool:
        """Has the program compiled anything that runs eagerly then?"""
        return bool(self._session.compiled) or any(model.compiled for model in self._session.run.models)

    def _tell_eager(self) -> None:
        if any(model.compiled for model in self._session.run.models):
            self._tell("compiled model: it runs eagerly while something is armed", "the numbers are eager's")
        for function in self._session.compiled.with_models:
            text = f"compiled function {function}: it runs eagerly while something is armed"
            self._tell(text, "it may call a model, whose modules compiled code does not call")

    def _play_beside(self, module: nn.Module, plain: Callable[[], Any]) -> None:
        """Run the modules inside a fused layer, for their taps; the run has the kernel's result already."""
        kind = type(module).__name__
        self._tell(
            f"{kind} is one kernel: its inside is played beside it",
            "its result is the kernel's; last digits inside may differ",
        )
        streams, threads = RandomState(), OtherThreads()
        try:
            with global_hooks_silent():  # the kernel calls none of the modules inside
                plain()
        except Exception as error:
            self._tell(f"{kind} cannot be played beside its kernel: {error}", "break at the layer itself")
        finally:
            if streams.changed() and not threads.have_run():
                streams.restore()

    def _tell(self, text: str, hint: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._session.say(Notice(text, hint))
