"""The profile of a session: which steps are timed, and what is on the modules meanwhile."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from layerstep.engine._torch import is_in_backward, unwrap
from layerstep.engine.guard import observing
from layerstep.engine.messages import Message
from layerstep.engine.profile_lines import Lines
from layerstep.engine.profile_places import Around, Timeable, places_of
from layerstep.engine.profile_steps import Cycle, Recorder, Timed, TimedStep, counts_of, first_line, size_of
from layerstep.engine.timing import Clock, Kind, TimedCall, TimedCompiled, timed_call_of
from layerstep.engine.timing_pace import Pace
from layerstep.engine.timing_stamps import DeviceStamps, HostStamps, stamps_for
from layerstep.engine.training import Stepped
from layerstep.views import Notice, Text

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["WARM_UP", "Profile", "profile_of"]

WARM_UP = 2
"""So many steps are left out: the first allocate, choose their kernels, and fill caches."""
MOST_MARKS = 500_000
"""Of all steps that are kept; beyond it the oldest go. About 80 MB."""
MOST_EVENTS = 20_000
"""Events of a device that are alive at once; beyond it those that have happened are read and let go."""
PROGRESS_EVERY = 0.2
BAR = 30
MOST_SAID = 1000
MOST_LOOKS = 8
"""Models that are looked at."""


def profile_of(session: Session) -> Profile:
    """The profile of a session; it is made when it is first asked for."""
    found = next((each for each in session.instruments if type(each) is Profile and not each.recorder), None)
    if found is None:
        found = Profile(session)
        session.instruments.append(found)
        session.listen(found.hear)
    return found


class Profile:
    """Times the calls of every module while it is on."""

    def __init__(self, session: Session, *, recorder: Recorder | None = None) -> None:
        self.session = session
        self.recorder = recorder
        """If there is one, it is on during the steps, and only the outermost calls are timed."""
        self.clock = Clock(lambda: session.is_silent, session.fail)
        self.modules: list[Timed] = []
        self.steps: deque[TimedStep] = deque()
        self.is_on = False
        self.wanted: int | None = None
        """How many steps; None: until it is switched off."""
        self.is_training = False
        self.warming = 0
        self.left_out = 0
        """Steps with a stop or an error in them."""
        self.shown_by = "profile report" if recorder is None else "profile ops"
        self.answers: list[str] = []
        """The lines that show what is timed, until somebody has asked."""
        self.untimed: list[str] = []
        """Modules that nothing can be put on: scripted, or inside of compiled code."""
        self.lines = Lines(self._is_where)
        self.inspector: Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], bool] | None = None
        """Called in a step that is left out, until it has worked: the outermost call, and what came out."""
        self.on_done: Callable[[], None] | None = None
        """Called once, when the steps that were wanted are timed."""
        self.said: deque[tuple[int, str]] = deque(maxlen=MOST_SAID)
        """Stops and what was found, and when: marks in the trace."""
        self._cycle = Cycle()
        self._inspected: set[int] = set()
        self._tried: set[int] = set()
        self._placed: dict[int, TimedCall] = {}
        self._keys: dict[int, int] = {}
        self._spoiled = False
        self._step = TimedStep([], False)
        self._told = 0.0
        self._thread = 0
        self._is_drawn = False
        self._cuts = self._marks = 0
        self._is_chosen = False
        """Is it known by which clock? Not before the first call: a model is found, or moved, until then."""
        self._pace = Pace()
        self._is_recording = False
        self._began = 0.0

    # --- on and off ---

    def start(self, wanted: int | None, *, warm_up: int = WARM_UP) -> None:
        """Begin anew with the next step that begins."""
        self.stop()
        self.steps.clear()
        self._marks = 0
        self.modules.clear()
        self._keys.clear()
        self._inspected.clear()
        self._tried.clear()
        self._cycle = Cycle()
        self.wanted, self.warming, self.left_out, self.is_on = wanted, warm_up, 0, True
        self.is_training = self.session.training.count > 0
        self._spoiled, self._cuts = False, 0
        self._told = time.monotonic()
        self.answers = [self.shown_by]
        self._step = TimedStep([], self.is_training)
        self.clock.use(HostStamps())
        self._is_chosen = False
        self.lines.clear()
        self.said.clear()
        self.apply()

    def stop(self) -> None:
        """Take everything off; what was measured stays."""
        if self.is_on:
            self._close_last()
        self.is_on = False
        self._remove()

    def apply(self) -> None:
        """Instrument: put a stand-in on each module that has none."""
        if not self.is_on:
            return
        pause = self.session.pause
        if pause is not None and not pause.is_start:
            self._spoiled = True
        self.untimed = []
        for model in self.session.models:
            for place in places_of(self.session.models, model, outermost=self.recorder is not None):
                self._place(place)
        training = self.session.training
        if self._steps not in training.before:
            training.before.insert(0, self._steps)
            training.after.insert(0, self._stepped)

    def _place(self, place: Timeable) -> None:
        module, path = place.module, place.path
        if place.is_whole:
            self.untimed.append(path)
        key = self._keys.get(id(module))
        if key is not None and self.modules[key].path != path:  # a second model was found
            self.modules[key] = replace(self.modules[key], path=path)
        if timed_call_of(module, self.clock) is not None:
            return
        if key is None or self.modules[key].reference() is not module:
            key = self._keys[id(module)] = len(self.modules)
            own = module.parameters() if place.is_whole else module.parameters(recurse=False)
            count = sum(size_of(p) for p in own)
            kind = type(unwrap(module)).__name__
            self.modules.append(Timed(path, kind, count, place.is_root, weakref.ref(module)))
        around = Around(self, module) if place.is_root else None
        kind_of_call = TimedCompiled if place.is_compiled else TimedCall
        stand_in = kind_of_call(module, self.clock, key, around)
        stand_in.place()
        self._placed[id(module)] = stand_in

    def _remove(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            self.session.say(Text(""), "progress")
        for stand_in in self._placed.values():
            stand_in.remove()
        self._placed.clear()
        self._record(on=False)
        self.clock.clear()
        self.lines.stop()
        self._pace.clear()
        training = self.session.training
        for listeners, mine in ((training.before, self._steps), (training.after, self._stepped)):
            if mine in listeners:
                listeners.remove(mine)

    def clear(self) -> None:
        """Instrument: the session lets go of the run."""
        self.stop()

    def unread(self) -> list[str]:
        return self.answers if self.steps else []

    def hear(self, message: Message) -> None:
        """Something was said: a stop or a notice goes into the trace."""
        text = first_line(message)
        if self.is_on and text:
            self.said.append((time.perf_counter_ns(), text))

    def cost(self) -> list[str]:
        if not self.is_on:
            return []
        what = f"a stand-in for the calls of {len(self._placed)} modules"
        return [f"profile: {what}, about 2 µs a call, 10 with a backward"]

    def _is_where(self) -> str:
        """For the lines: where the run is."""
        if self.session.pause is not None or self.clock.inspect is not None:
            return ""
        if self.clock.depth:
            return "inside"
        last = self.clock.log[-1][0] if self.clock.log else Kind.TOOL
        is_between = last in (Kind.STEPPED, Kind.TOOL) or not self.is_training
        return "between" if is_between else "rest"

    # --- steps ---

    def begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An outermost module is called."""
        if self.clock.depth or is_in_backward():
            return
        if self.is_training and not self._cuts and not torch.is_grad_enabled():
            self.is_training = self._step.is_training = False  # it was trained before; now it is used
        if self.clock.open_passes:  # a backward that has raised
            self._spoiled, self.clock.open_passes = True, 0
            self.clock.note(Kind.END)
        if not self.is_training and self.clock.log:
            self._cut()
        if not self.is_on:
            return
        if not self._is_chosen:
            self._is_chosen = True
            self.clock.cut()
            with observing():
                self.clock.use(stamps_for(self.session.models.everything()))
        if not self.clock.log:
            self.clock.note(Kind.TOOL)
            self._began = time.perf_counter()
        if self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            self.lines.start(self._thread)
        samples, tokens = counts_of(args, kwargs)
        self._step.samples += samples
        self._step.tokens += tokens

    def ended(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """It has returned; the first time it is also looked at."""
        if self.inspector is None or self.clock.depth or is_in_backward() or id(module) in self._inspected:
            return
        models = self.session.models
        owner = models.by_root(module)
        is_late = bool(self._inspected) and self.warming <= 0
        if (
            owner is None
            or (owner.is_helper and owner is not models.main)
            or is_late
            or len(self._inspected) >= MOST_LOOKS
        ):
            return
        since = self.clock.now()
        if self.inspector(module, args, kwargs, output) or id(module) in self._tried:
            self._inspected.add(id(module))
        self._tried.add(id(module))  # a second time with the next call: the first of a cache is odd
        self.clock.log.append((Kind.TOOL, since, self.clock.now(), -1, 0))

    def raised(self) -> None:
        """An outermost call has raised: its step does not count."""
        if not self.clock.depth and not is_in_backward():
            self._spoiled = True

    def _steps(self, stepped: Stepped) -> None:
        if not self.is_training:
            self.is_training = True
            if self._cuts:  # what were taken for forwards were parts of a step, and this one is torn
                self.steps.clear()
                self._marks = 0
                self.warming = max(1, self.warming)
        self.clock.note(Kind.OPTIMIZER)

    def _stepped(self, stepped: Stepped) -> None:
        self.clock.note(Kind.STEPPED)
        is_over = self._cycle.ends_with(stepped.number)
        if self._cycle.is_new:
            self.warming = max(1, self.warming)
        if is_over:
            self._cut()

    def _cut(self) -> None:
        self._cuts += 1
        self.clock.note(Kind.TOOL)
        step, step.marks = self._step, self.clock.cut()
        step.is_training = self.is_training
        if self.recorder is None and self.clock.stamps.device == "cpu":
            step.pace = self._pace.beside(time.perf_counter() - self._began)
        self._began = time.perf_counter()
        spoiled, self._spoiled = self._spoiled, False
        self._step = TimedStep([], self.is_training)
        if self.warming > 0:
            self.warming -= 1
            self._record(on=self.warming == 0)
        elif spoiled:
            self.left_out += 1
        else:
            self._keep(step)
        if self.wanted is not None and len(self.steps) >= self.wanted:
            self._finish()
            return
        self._progress()
        self.clock.note(Kind.TOOL)

    def _record(self, *, on: bool) -> None:
        if self.recorder is None or on == self._is_recording:
            return
        self._is_recording = on
        if on:
            self.recorder.start()
        else:
            self.recorder.stop()

    def _keep(self, step: TimedStep) -> None:
        self.steps.append(step)
        self._marks += len(step.marks)
        while len(self.steps) > 1 and self._marks > MOST_MARKS:
            self._marks -= len(self.steps.popleft().marks)
        stamps = self.clock.stamps
        if isinstance(stamps, HostStamps):
            step.is_read = True
            return
        waiting = [each for each in self.steps if not each.is_read]
        if sum(len(each.marks) for each in waiting) > MOST_EVENTS:
            for each in waiting:
                if stamps.has_passed(each.marks):
                    each.marks, each.is_read = stamps.nanoseconds(each.marks), True

    def settle(self) -> None:
        """Make times of all stamps; a device is waited for once."""
        stamps, waiting = self.clock.stamps, [step for step in self.steps if not step.is_read]
        if waiting and isinstance(stamps, DeviceStamps):
            stamps.wait_for(waiting[-1].marks)
            for step in waiting:
                step.marks, step.is_read = stamps.nanoseconds(step.marks), True

    def _close_last(self) -> None:
        """The last forward has ended, though none has begun after it."""
        is_whole = not self.is_training and not self.clock.depth and len(self.clock.log) > 2
        if is_whole and not self._spoiled and self.warming <= 0 and self._step.samples:
            marks = self.clock.cut()
            last = max(at for at, mark in enumerate(marks) if mark[0] == Kind.EXIT)
            self._step.marks = [*marks[: last + 1], (Kind.TOOL, *marks[last][2:3] * 2, -1, 0)]
            self._keep(self._step)
            self._step = TimedStep([], False)

    def _finish(self) -> None:
        self.is_on = False
        self._remove()
        self.session.say(
            Notice(f"profile: {len(self.steps)} {self.word} timed", f"`{self.shown_by}` shows them", "good")
        )
        done, self.on_done = self.on_done, None
        if done is not None:
            with observing():
                done()

    @property
    def word(self) -> str:
        plural = len(self.steps) != 1
        return ("training step" if self.is_training else "forward") + "s" * plural

    def _progress(self) -> None:
        """A bar, for those who sit and wait."""
        if self.wanted is None or time.monotonic() - self._told < PROGRESS_EVERY:
            return
        self._told = time.monotonic()
        done = len(self.steps)
        bar = "█" * round(BAR * done / self.wanted)
        unit = ("training step" if self.is_training else "forward") + "s" * (self.wanted != 1)
        where = f"{self.warming} to warm up" if self.warming else f"{done:,} of {self.wanted:,} {unit}"
        self._is_drawn = True
        self.session.say(Text(f"profile {bar:░<{BAR}} {where}"), "progress")
