"""The profile of a session: which steps are timed, and what is on the modules meanwhile."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from layerstep._torch import is_in_backward
from layerstep.engine.instrument import Instrument
from layerstep.engine.messages import Message
from layerstep.profile import machine
from layerstep.profile.pace import Pace
from layerstep.profile.slow_lines import Lines
from layerstep.profile.stamps import HostStamps, stamps_for
from layerstep.profile.steps import (
    Inspected,
    KeptSteps,
    StepRecorder,
    Timed,
    TimedStep,
    counts_of,
    first_line,
    others_on,
    part_of_step,
    progress,
    shortfall,
    until_last_exit,
    without_unused,
)
from layerstep.profile.timed_modules import TimedModules
from layerstep.profile.timing import Clock, MarkKind
from layerstep.tensors.observing import observing
from layerstep.training_steps.borders import Borders, Call, End
from layerstep.training_steps.steps import Stepped
from layerstep.views import Notice, Text

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["WARM_UP", "Profile"]

WARM_UP = 2
"""How many steps are left out: the first ones allocate, choose kernels and fill caches."""
PROGRESS_EVERY = 0.2
MOST_NOTES = 1000


class Profile(Instrument):
    """Times the calls of every module while it is on."""

    def __init__(self, session: Session, *, recorder: StepRecorder | None = None) -> None:
        self.session = session
        self.recorder = recorder
        """A recorder that is on during the steps; with it, only outermost calls are timed."""
        self.clock = Clock(lambda: session.run.is_silent, session.fail)
        self.steps = KeptSteps()
        self.is_on = False
        self.wanted: int | None = None
        """How many steps; None: until it is switched off."""
        self.borders = Borders(session.run.models, session.run.training)
        self.warming = 0
        self.left_out = 0
        """Steps with a stop or an error in them."""
        self.too_long = 0
        """Steps with more calls than are kept."""
        self.beside: set[str] = set()
        """The commands of what else was on in steps that are kept: its work is in their times."""
        self._beside: set[str] = set()
        self.shown_by = "profile report" if recorder is None else "profile ops"
        self.answers: list[str] = []
        """The lines that show what is timed, until one of them was typed."""
        self.lines = Lines(
            lambda: "" if session.run.pause is not None else part_of_step(self.clock, self.is_training)
        )
        self.inspector: Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], bool] | None = None
        """Called in steps that are left out, until it succeeds, with the outermost call and its output."""
        self.on_done: Callable[[], None] | None = None
        """Called once, when the steps that were wanted are timed."""
        self.on_restart: Callable[[], None] | None = None
        """Called when earlier steps become useless: the training begins, or the main model is found."""
        self.notes: deque[tuple[int, str]] = deque(maxlen=MOST_NOTES)
        """Stops and findings with their times, for the trace."""
        self._warm_up = 0
        self._has_forward = self._waits = False
        self._is_again = False
        """May it restart? Forwards were timed, and then an optimizer steps."""
        self._asides: list[int] = []
        """Where in the marks those calls begin that may not belong to a training step."""
        self._aside = -1
        self._looks = Inspected()
        self._timed_modules = TimedModules(self)
        self._spoiled = False
        self._step = TimedStep([], False)
        self._told = 0.0
        self._thread = 0
        self._is_drawn = False
        self._cuts = 0
        self._is_chosen = False
        """Is the clock chosen? Not before the first call, because the model may still move to a device."""
        self._pace = Pace()
        if recorder is None:
            session.listen(self.note_message)
        self._is_recording = False
        self._began = 0.0
        self._asked: list[str] = []
        self._done: Callable[[], None] | None = None

    # --- on and off ---

    def start(self, wanted: int | None, *, warm_up: int = WARM_UP) -> None:
        """Forget the steps so far, and start with the next one."""
        self.stop()
        self.steps.clear()
        self._timed_modules.forget()
        self._looks.clear()
        self.borders.start()
        self.wanted, self.warming, self._warm_up, self.is_on = wanted, warm_up, warm_up, True
        self.left_out = self.too_long = 0
        self.beside, self._beside = set(), others_on(self.session)
        self._spoiled, self._cuts = False, 0
        self._has_forward = self._waits = self._is_again = False
        self._told = time.monotonic()
        self.answers = [self.shown_by]
        self._step = TimedStep([], False)
        self.clock.use(HostStamps())
        self._is_chosen = False
        self.lines.clear()
        self.notes.clear()
        self.apply()

    def stop(self) -> None:
        """Remove everything that is installed; keep the measured steps."""
        if self.is_on:
            self._close_last()
        self.is_on = self._is_again = False
        self._remove()

    def apply(self) -> None:
        """Replace the calls of each module that is not timed yet."""
        if not self.is_on:
            return
        pause = self.session.run.pause
        if pause is not None and not pause.is_start:
            self._spoiled = True
        self._timed_modules.apply(self.session.run.models, outermost=self.recorder is not None)
        training = self.session.run.training
        if self._steps not in training.before:
            training.before.insert(0, self._steps)
        if self._stepped not in training.after:
            training.after.insert(0, self._stepped)

    def _remove(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            self.session.say(Text(""), "progress")
        self._timed_modules.remove()
        self._record(on=False)
        self.clock.clear()
        self.lines.stop()
        self._pace.clear()
        training = self.session.run.training
        training.listen(training.after, self._stepped, False)
        if not self._is_again:
            training.listen(training.before, self._steps, False)

    def clear(self) -> None:
        """Called when the session detaches."""
        self.stop()

    def unread(self) -> list[str]:
        return self.answers if self.steps else []

    def shortfall(self) -> str:
        """At the end of the run: say in a line which wanted steps did not come."""
        if not self.is_on or not self.answers:
            return ""
        word, done = self.borders.word, len(self.steps)
        if self._waits:
            return f"profile: no optimizer has stepped, so {done:,} {word}s are timed"
        count = self._cuts + (self._has_forward and not self.is_training)
        return shortfall(done, self.wanted or 0, count, word=word, warm_up=self._warm_up)

    @property
    def modules(self) -> list[Timed]:
        return self._timed_modules.modules

    @property
    def untimed(self) -> list[str]:
        """Modules that cannot be timed inside: scripted or compiled."""
        return self._timed_modules.untimed

    @property
    def is_training(self) -> bool:
        return self.borders.is_training

    def note_message(self, message: Message) -> None:
        """Note a stop or a notice for the trace."""
        text = first_line(message)
        if self.is_on and text:
            self.notes.append((machine.clock()(), text))

    def cost(self) -> list[str]:
        if not self.is_on:
            return []
        what = f"it replaces the calls of {len(self._timed_modules)} modules"
        return [f"profile: {what}, about 2 µs a call, 10 with a backward"]

    # --- steps ---

    def call_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An outermost module is called."""
        if self.clock.depth or is_in_backward():
            return
        call = self.borders.called(module)
        if self.clock.open_passes:  # a backward that has raised
            self._spoiled, self.clock.open_passes = True, 0
            self.clock.note(MarkKind.END)
        if self.borders.is_new_unit:
            self._restart()
        if call is Call.FORWARD:
            if self._has_forward:
                self._cut()
            else:
                self.clock.cut()
            self._has_forward = True
        if not self.is_on:
            return
        self._prepare()
        self._aside = len(self.clock.log) if call is Call.ASIDE else -1
        if call is Call.ASIDE:
            return
        if self.is_training and not module.training:
            self._asides.append(len(self.clock.log))
        if call is Call.FORWARD or self.is_training:
            samples, tokens = counts_of(args, kwargs)
            self._step.samples += samples
            self._step.tokens += tokens

    def _prepare(self) -> None:
        """Before the first mark of a step, or in another thread."""
        if not self._is_chosen:
            self._is_chosen = True
            self.clock.cut()
            with observing():
                self.clock.use(stamps_for(self.session.run.models.everything()))
        if not self.clock.log:
            self.clock.note(MarkKind.TOOL)
            self._began = machine.now()
        if self._thread != threading.get_ident():
            self._thread = threading.get_ident()
            self.lines.start(self._thread)

    def _restart(self) -> None:
        """Start again: the steps so far were forwards before the training, or of a smaller module."""
        self.steps.clear()
        self._cuts = self.left_out = self.too_long = 0
        self.beside = set()
        self.warming, self._waits, self._has_forward = self._warm_up, False, False
        self._looks.clear()
        self._record(on=False)
        if self.on_restart is not None:
            self.on_restart()

    def ended(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """An outermost call has returned. The first one is also inspected."""
        if self._aside >= 0 and not self.clock.depth and not is_in_backward():
            self.clock.set_aside(self._aside)
            self._aside = -1
            return
        if self.inspector is None or self.clock.depth or is_in_backward():
            return
        owner, main = self.session.run.models.by_root(module), self.session.run.models.main
        is_of_interest = owner is not None and (not owner.is_helper or owner is main)
        if is_of_interest and self._looks.are_wanted(module, is_late=self.warming <= 0):
            since = self.clock.now()
            self._looks.note(module, has_worked=self.inspector(module, args, kwargs, output))
            self.clock.log.append((MarkKind.TOOL, since, self.clock.now(), -1, 0))

    def has_raised(self) -> None:
        """An outermost call has raised: its step does not count."""
        if not self.clock.depth and not is_in_backward():
            self._spoiled = True

    def _steps(self, stepped: Stepped) -> None:
        if not self.is_on:
            if self._is_again:
                self._resume()
            return
        if self.borders.begin_training():
            self._restart()
            self.warming = max(1, self._warm_up)  # this one began before that was known
        self.clock.note(MarkKind.OPTIMIZER)

    def _resume(self) -> None:
        """Forwards were timed for want of an optimizer. Now there is one: time training steps instead."""
        answers, done = self._asked, self._done
        self.start(self.wanted, warm_up=self._warm_up)
        self.answers, self.on_done = answers, done
        self.session.say(Notice(f"profile: the training begins; timing {self.wanted} training steps"))
        self.borders.begin_training()
        self.warming = max(1, self._warm_up)

    def _stepped(self, stepped: Stepped) -> None:
        if not self.is_on:
            return
        self.clock.note(MarkKind.STEPPED)
        end = self.borders.stepped(stepped)
        if end is End.TORN:
            self.warming = max(1, self.warming)
        if end is not End.NONE:
            self._cut()

    def _cut(self) -> None:
        self._cuts += 1
        self.clock.note(MarkKind.TOOL)
        is_full = self.clock.is_full
        step, step.marks = self._step, self.clock.cut()
        step.is_training = self.is_training
        if self._asides:
            asides, self._asides = self._asides, []
            step.marks = step.marks if is_full else without_unused(step.marks, asides)
        if self.recorder is None and self.clock.stamps.device == "cpu":
            step.pace = self._pace.measure_for(machine.now() - self._began)
        self._began = machine.now()
        spoiled, self._spoiled = self._spoiled, False
        before, self._beside = self._beside, others_on(self.session)
        self._step = TimedStep([], self.is_training)
        if self.warming > 0:
            self.warming -= 1
            self._record(on=self.warming == 0)
        elif spoiled or is_full:
            self.left_out += spoiled
            self.too_long += is_full
        elif not self._waits:
            self.steps.keep(step, self.clock.stamps)
            self.beside |= before | self._beside
        if self.wanted is not None and len(self.steps) >= self.wanted and not self._holds():
            self._finish()
            return
        self._progress()
        self.clock.note(MarkKind.TOOL)

    def _holds(self) -> bool:
        """All wanted forwards are timed. Wait for training steps, which tell more, if some may come?"""
        if self.is_training:
            return False
        if not self._waits:
            main = self.session.run.models.main
            self._waits = main is None or main.is_helper or self.borders.may_train()
            if self._waits and main is not None and not main.is_helper:
                hint = "`profile report` shows the forwards so far"
                self.session.say(Notice("profile: waiting for the optimizer's first step", hint))
        return self._waits

    def _record(self, *, on: bool) -> None:
        if self.recorder is None or on == self._is_recording:
            return
        self._is_recording = on
        (self.recorder.start if on else self.recorder.stop)()

    def _close_last(self) -> None:
        """Close the last forward, though no other has begun after it."""
        is_whole = not self.is_training and not self.clock.depth and len(self.clock.log) > 2
        is_whole &= self._has_forward and not self._waits and not self.clock.is_full
        if is_whole and not self._spoiled and self.warming <= 0 and self._step.samples:
            self._step.marks = until_last_exit(self.clock.cut())
            self.steps.keep(self._step, self.clock.stamps)
            self._step = TimedStep([], False)

    def _finish(self) -> None:
        self.is_on = False
        self._is_again = not self.is_training and self.recorder is None
        self._remove()
        self._asked, self._done = self.answers, self.on_done
        self.session.say(
            Notice(f"profile: {len(self.steps)} {self.word} timed", f"`{self.shown_by}` shows them", "good")
        )
        done, self.on_done = self.on_done, None
        if done is not None:
            with observing():
                done()

    @property
    def word(self) -> str:
        first, of, name = self.borders.unit_word.partition(" of ")
        return f"{first}{'s' * (len(self.steps) != 1)}{of}{name}"

    def _progress(self) -> None:
        """Show a progress bar."""
        if self.wanted is None or time.monotonic() - self._told < PROGRESS_EVERY:
            return
        self._told = time.monotonic()
        self._is_drawn = True
        text = progress(len(self.steps), self.wanted, word=self.borders.word, warming=self.warming)
        self.session.say(Text(text), "progress")
