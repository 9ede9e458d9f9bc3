"""What is installed on the run: carries out the plan, and makes compiled code run eagerly where it must."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from layerstep._torch import restore_stance, take_eager_stance
from layerstep.calls.events import Phase
from layerstep.calls.overwritten_inputs import OverwrittenInputs
from layerstep.engine.backward_pass import BackwardPass
from layerstep.engine.compiled import CompiledFunctions
from layerstep.engine.instrument import Instruments, Measuring
from layerstep.engine.messages import Messages
from layerstep.engine.plan import make_plan
from layerstep.engine.points import Points
from layerstep.engine.run import Run
from layerstep.engine.stepper import Intent, Reach
from layerstep.hooks.taps import Taps

__all__ = ["Installation"]


class Installation:
    """What is installed for a session now."""

    def __init__(
        self,
        run: Run,
        points: Points,
        *,
        taps: Taps,
        instruments: Instruments[Any],
        backward_pass: BackwardPass,
        overwritten_inputs: OverwrittenInputs,
        compiled: CompiledFunctions,
        messages: Messages,
        rearm: Callable[[], None],
    ) -> None:
        self._run = run
        self._points = points
        self._instruments = instruments
        self._backward_pass = backward_pass
        self._overwritten_inputs = overwritten_inputs
        self._compiled = compiled
        self._messages = messages
        self._rearm = rearm
        self.taps = taps
        self.sink = taps.sink
        self.is_eager = False
        """Compiled code, if there is any, runs eagerly on our account."""
        self._stance_before: Any = None
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
                self._rearm()

    def apply(self) -> None:
        """Install what the points and the intent need, and remove the rest."""
        for prepare in self._instruments.at("prepare"):
            prepare()
        if self._holds:
            return
        pause, intent, models = self._run.pause, self._run.intent, self._run.models
        if pause is not None:
            self._enclosing = [weakref.ref(frame.module) for frame in pause.stack if frame.module is not None]
        enclosing = [module for each in self._enclosing if (module := each()) is not None]
        has_modes = any(each.has_modes for each in self._instruments)
        with_roots = any(each.wants_forwards for each in self._instruments)
        plan = make_plan(
            models,
            self._points,
            intent=intent,
            enclosing=enclosing,
            has_modes=has_modes,
            with_roots=with_roots,
        )
        self.taps.roots = {id(root) for model in models if (root := model.root) is not None}
        self.taps.apply(plan)
        if not any(Phase.INPUTS in wanted for _, wanted in plan.values()):
            self._overwritten_inputs.clear()
        self.sink.listening = intent.reach is not Reach.NOTHING or has_modes
        in_backward = [point for point in self._points if point.enabled and point.phase.is_backward]
        self.sink.noting = bool(in_backward)
        self._backward_pass.arm(in_backward, is_stepped=self.sink.listening)
        by_ops = any(each.wants_ops for each in self._instruments)
        for instrument in self._instruments:
            instrument.apply()
        # Dynamo would compile again, with the mode that sees operations in the compiled code.
        compiled = by_ops or any(model.compiled for model in models)
        hidden = self._compiled.with_models and self._is_armed(intent)
        self._take_stance(wanted=bool(plan and compiled) or bool(hidden))

    def clear(self) -> None:
        self.taps.clear()
        self.sink.listening = self.sink.noting = False
        self._backward_pass.arm([], is_stepped=False)
        self._overwritten_inputs.clear()
        for instrument in self._instruments:
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
        elif any(isinstance(each, Measuring) and each.is_on for each in self._instruments):
            for function in self._compiled.with_models:
                text = f"compiled function {function}: the modules that it calls are not measured"
                self._messages.say_once(text, "`torch.compile(model)` is measured as one call, as a whole")

    def _is_armed(self, intent: Intent) -> bool:
        """Is something wanted of modules, also of those that are not known yet?"""
        return intent.reach is not Reach.NOTHING or any(point.enabled for point in self._points)

    @property
    def has_compiled_code(self) -> bool:
        """Has the program compiled anything that runs eagerly then?"""
        return bool(self._compiled) or any(model.compiled for model in self._run.models)

    def _tell_eager(self) -> None:
        if any(model.compiled for model in self._run.models):
            self._messages.say_once(
                "compiled model: it runs eagerly while something is armed", "the numbers are eager's"
            )
        for function in self._compiled.with_models:
            text = f"compiled function {function}: it runs eagerly while something is armed"
            self._messages.say_once(text, "it may call a model, whose modules compiled code does not call")
