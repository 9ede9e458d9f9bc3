"""The profile of a session: which steps are timed, and what is on the modules meanwhile."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from layerstep.engine._torch import is_compiled, is_in_backward, is_scripted
from layerstep.engine.guard import observing
from layerstep.engine.messages import Message
from layerstep.engine.profile_lines import Lines
from layerstep.engine.profile_steps import Recorder, Timed, TimedStep, counts_of, first_line, size_of
from layerstep.engine.timing import Clock, DeviceStamps, Kind, Stamps, TimedForward
from layerstep.engine.timing_pace import Pace, waited
from layerstep.engine.training import Stepped
from layerstep.views import Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["WARM_UP", "Profile", "profile_of"]

WARM_UP = 2
"""So many steps are left out: the first allocate, choose their kernels, and fill caches."""
MOST_MARKS = 500_000
"""Of all steps that are kept; beyond it the oldest go. About 80 MB."""
PROGRESS_EVERY = 2.0
MOST_SAID = 1000


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
        """Steps with a stop in them."""
        self.shown_by = "profile report" if recorder is None else "profile ops"
        self.untimed: list[str] = []
        """Modules that nothing can be put on: scripted, or inside of compiled code."""
        self.lines = Lines(self._is_where)
        self.inspector: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None] | None = None
        """Called once, in a step that is left out, with the call of an outermost module that has ended."""
        self.on_done: Callable[[], None] | None = None
        """Called once, when the steps that were wanted are timed."""
        self.said: deque[tuple[int, str]] = deque(maxlen=MOST_SAID)
        """Stops and what was found, and when: marks in the trace."""
        self._placed: dict[int, TimedForward] = {}
        self._keys: dict[int, int] = {}
        self._spoiled = False
        self._step = TimedStep([], False)
        self._told = 0.0
        self._thread = 0
        self._nested = self._cuts = 0
        self._pace = Pace()
        self._is_recording = False
        self._cpu = self._waited = 0.0

    # --- on and off ---

    def start(self, wanted: int | None, *, warm_up: int = WARM_UP) -> None:
        """Begin anew with the next step that begins."""
        self.stop()
        self.steps.clear()
        self.modules.clear()
        self._keys.clear()
        self.wanted, self.warming, self.left_out, self.is_on = wanted, warm_up, 0, True
        self.is_training = self.session.training.count > 0
        self._spoiled, self._nested, self._cuts = False, 0, 0
        self._told = time.monotonic()
        self._step = TimedStep([], self.is_training)
        self.clock.use(self._stamps())
        self.lines.clear()
        self.said.clear()
        self.apply()

    def stop(self) -> None:
        """Take everything off; what was measured stays."""
        if self.is_on:
            self._close_last()
        self.is_on = False
        self._remove()

    def _stamps(self) -> Stamps:
        for _, module in self.session.models.everything():
            device = next((p.device for p in module.parameters(recurse=False)), None)
            if device is not None and device.type not in ("cpu", "meta"):
                return DeviceStamps(device.type)
        return type(Clock(bool, self.session.fail).stamps)()

    def apply(self) -> None:
        """Instrument: put a stand-in on each module that has none."""
        if not self.is_on:
            return
        pause = self.session.pause
        if pause is not None and pause.stack:
            self._spoiled = True
        self.untimed = []
        for model in self.session.models:
            root = model.root
            if root is None or model.compiled:
                self._place_whole(model.given, model.name)
                continue
            inside = [(model.name, root)] if self.recorder is not None else model.names
            for _, module in inside:
                self._place(module, self.session.models.path_of(module), is_root=module is root)
        training = self.session.training
        if self._steps not in training.before:
            training.before.insert(0, self._steps)
            training.after.insert(0, self._stepped)

    def _place_whole(self, module: nn.Module | None, name: str) -> None:
        """Of compiled code only the whole is timed: a stand-in inside would be compiled, too."""
        if module is not None:
            self.untimed.append(name)
            if is_compiled(module) and "_compiled_call_impl" not in module.__dict__:
                self._place(module, name, is_root=True)

    def _place(self, module: nn.Module, path: str, *, is_root: bool) -> None:
        now = module.__dict__.get("forward")
        if isinstance(now, TimedForward) and now.clock is self.clock:
            return
        if is_scripted(module) or not callable(getattr(module, "forward", None)):
            self.untimed.append(path)
            return
        if type(module).forward is nn.Module.forward and now is None:
            return  # a ModuleList is never called
        key = self._keys.get(id(module))
        if key is None or self.modules[key].reference() is not module:
            key = self._keys[id(module)] = len(self.modules)
            count = sum(size_of(p) for p in module._parameters.values() if p is not None)
            self.modules.append(Timed(path, type(module).__name__, count, is_root, weakref.ref(module)))
        stand_in = TimedForward(module, self.clock, key, _Around(self, module) if is_root else None)
        module.__dict__["forward"] = stand_in
        self._placed[id(module)] = stand_in

    def _remove(self) -> None:
        for stand_in in self._placed.values():
            stand_in.remove()
        self._placed.clear()
        self._record(on=False)
        self.clock.clear()
        self.lines.stop()
        training = self.session.training
        for listeners, mine in ((training.before, self._steps), (training.after, self._stepped)):
            if mine in listeners:
                listeners.remove(mine)

    def clear(self) -> None:
        """Instrument: the session lets go of the run."""
        self.stop()

    def hear(self, message: Message) -> None:
        """Something was said: a stop or a notice goes into the trace."""
        text = first_line(message)
        if self.is_on and text:
            self.said.append((time.perf_counter_ns(), text))

    def cost(self) -> list[str]:
        if not self.is_on:
            return []
        return [f"profile: a stand-in for the forward of {len(self._placed)} modules, about 1 µs a call"]

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
        if not self.is_training and self.clock.log:
            self._cut()
        if not self.is_on:
            return
        if not self.clock.log:
            self.clock.note(Kind.TOOL)
            self._cpu, self._waited = time.process_time(), waited()
        if self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            self.lines.start(self._thread)
        samples, tokens = counts_of(args, kwargs)
        self._step.samples += samples
        self._step.tokens += tokens

    def ended(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """It has returned; the first time it is also looked at."""
        if self.inspector is None or self.clock.depth or is_in_backward():
            return
        owner = self.session.models.by_root(module)
        if owner is None or owner is not self.session.models.main:
            return
        inspector, self.inspector = self.inspector, None
        since = self.clock.now()
        inspector(module, args, kwargs)
        self.clock.log.append((Kind.TOOL, since, self.clock.now(), -1, 0))

    def _steps(self, stepped: Stepped) -> None:
        if self.clock.log and self.clock.log[-1][0] == Kind.OPTIMIZER:
            self._nested += 1  # a subclass calls the step of its parent: torch tells of both
            return
        self._nested = 0
        if not self.is_training:
            self.is_training = True
            if self._cuts:  # what were taken for forwards were parts of a step, and this one is torn
                self.steps.clear()
                self.warming = max(1, self.warming)
        self.clock.note(Kind.OPTIMIZER)

    def _stepped(self, stepped: Stepped) -> None:
        if self._nested:
            self._nested -= 1
            return
        self.clock.note(Kind.STEPPED)
        if stepped.number == 1:
            self._cut()

    def _cut(self) -> None:
        self._cuts += 1
        self.clock.note(Kind.TOOL)
        step, step.marks = self._step, self.clock.cut()
        step.is_training = self.is_training
        step.cpu = time.process_time() - self._cpu
        step.waited = waited() - self._waited
        step.pace = self._pace.now()
        self._cpu, self._waited = time.process_time(), waited()
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
        self.clock.note(Kind.TOOL)
        self._progress()

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
        while len(self.steps) > 1 and sum(len(each.marks) for each in self.steps) > MOST_MARKS:
            self.steps.popleft()

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
        """A line now and then, where somebody sits and waits."""
        late = time.monotonic() - self._told > PROGRESS_EVERY
        if self.wanted is not None and late and sys.stderr is not None and sys.stderr.isatty():
            self._told = time.monotonic()
            self.session.say(Notice(f"profile: {len(self.steps)} of {self.wanted} {self.word}"))


class _Around:
    """What an outermost stand-in tells its profile."""

    __slots__ = ("_module", "_profile")

    def __init__(self, profile: Profile, module: nn.Module) -> None:
        self._profile = profile
        self._module = weakref.ref(module)

    def begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._profile.begins(args, kwargs)

    def ended(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        module = self._module()
        if module is not None and output is not None:
            self._profile.ended(module, args, kwargs)
