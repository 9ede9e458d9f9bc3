"""The session: it owns the models, the points and the taps, decides at each event, and pauses.

It is given an interpreter for lines and listeners for what there is to say; it prints nothing.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

from torch import nn

from layerstep._torch import is_in_backward, is_tracing
from layerstep.config import Config
from layerstep.crashes.catching import Crashes
from layerstep.engine import stepper
from layerstep.engine.backward_pass import Backpass
from layerstep.engine.compiled import CompiledFunctions
from layerstep.engine.conversation import Conversation
from layerstep.engine.discovery import Discovery
from layerstep.engine.events import Event, Phase
from layerstep.engine.guard import Evaluations, Outcome
from layerstep.engine.install import Arming
from layerstep.engine.lifetime import leave_at_exit, leave_forked_children
from layerstep.engine.line_effects import Baseline, watching_line
from layerstep.engine.messages import Frontend, Instrument, Interpreter, Message, Watch, is_lost
from layerstep.engine.model_intake import Arrivals
from layerstep.engine.models import Model, Models
from layerstep.engine.overwritten_inputs import Inputs
from layerstep.engine.pause import Pause
from layerstep.engine.points import Point, Points
from layerstep.engine.recordings import Recordings
from layerstep.engine.scope import Scope, run_python
from layerstep.engine.seen_values import Kept, Results
from layerstep.engine.stack import Frame, build_stack, is_ours
from layerstep.engine.stand import Stand
from layerstep.engine.stop_decision import Judge
from layerstep.engine.threads import Turns
from layerstep.engine.training import Steps
from layerstep.errors import describe_bug
from layerstep.imports import our_imports
from layerstep.ops.stepping import Opstep
from layerstep.process.interrupts import Interrupts, is_from_a_signal, not_now
from layerstep.rerun.kv_caches import Caches
from layerstep.source_lines.stops import line_pause
from layerstep.source_lines.watcher import SourceLines
from layerstep.views import Notice, View
from layerstep.watchpoints.watchpoints import Writes

__all__ = ["Session"]

I = TypeVar("I", bound=Instrument)  # noqa: E741


class Session:
    """One debugger on one process."""

    def __init__(self, interpreter: Interpreter, config: Config | None = None) -> None:
        self.config = config or Config()
        self.models = Models()
        self.points = Points()
        self.watches: dict[int, Watch] = {}
        self.aliases: dict[str, str] = {}
        self.history: list[str] = []
        self.results = Results(self.config.keep_bytes)
        self.kept = Kept(self.config.keep_bytes)
        self.training = Steps(self.fail)
        self.recordings = Recordings(
            most_tensors=self.config.max_tracked_tensors, budget=self.config.track_bytes
        )
        self.scope = self.scope_at(None)
        self.script: deque[str] = deque()
        """Lines taken before anybody is asked."""
        self.frontend: Frontend | None = None
        self.transcript: str | None = None
        self.dump_to: Path | None = None
        """Where a catchpoint that fires in batch work writes its core file."""
        self.shown: View | None = None
        self.pause: Pause | None = None
        self.intent = stepper.GO
        self.is_attached = False
        self.quitting: threading.Thread | None = None
        self.disturbed: list[tuple[str, Outcome]] = []
        self.baseline: Baseline | None = None
        """What `perturbed?` compares with: taken before the first line of a pause that could write."""
        self.caught: list[str] = []
        """What catchpoints have caught; nobody being there to be asked, the exit code tells."""
        self.crashes = Crashes(self)
        self.caches = Caches()
        self.inputs = Inputs(self)
        self.arming = Arming(self)
        self.arrivals = Arrivals(self)
        self.backpass = Backpass(self)
        self.opstep = Opstep(self)
        self.instruments: list[Instrument] = []
        """What commands install beside taps; told when the points change, and when everything goes."""
        self.writes = Writes(self)
        self.instruments.append(self.writes)
        self.source_lines = SourceLines(self)
        self.instruments.append(self.source_lines)
        self.memory: dict[str, Any] = {}
        """What commands keep for themselves between lines, by their names."""
        self.discovery = Discovery(self._arrived, self.crashes.raised)
        self.stand = Stand(self)
        self.interrupts = Interrupts(self.stand.interrupted, has_pause=lambda: self.pause is not None)
        self.judge = Judge(self)
        self.conversation = Conversation(self, interpreter)
        self._listeners: list[Callable[[Message], None]] = []
        self.turns = Turns(self)
        self.compiled = CompiledFunctions(lambda _: self.rearm(), self.fail)
        self._here = Evaluations()
        leave_forked_children(self)
        leave_at_exit(self)

    def scope_at(self, frame: Frame | None) -> Scope:
        """The names at a place in the run."""
        return Scope(
            self.models,
            frame,
            kept=self.kept,
            results=self.results,
            recordings=self.recordings,
            training=self.training,
        )

    def instrument(self, kind: Callable[[Session], I]) -> I:
        """The instrument of that class; it is made when it is first asked for."""
        found = next((each for each in self.instruments if type(each) is kind), None)
        if found is None:
            found = kind(self)
            self.instruments.append(found)
        return cast(I, found)

    def listen(self, listener: Callable[[Message], None]) -> None:
        self._listeners.append(listener)

    def say(
        self,
        view: View,
        kind: str = "notice",
        line: str = "",
        *,
        origin: str = "",
        stop: dict[str, Any] | None = None,
    ) -> None:
        with not_now(), our_imports():
            for listener in list(self._listeners):
                try:
                    listener(Message(kind, view, line, origin, stop))
                except Exception as error:  # never a reason for the run to end
                    if is_lost(error) and listener in self._listeners:
                        self._listeners.remove(listener)

    def attach(self, *, discover: bool = False) -> None:
        """Let points take effect; `discover` also finds models as they are called."""
        self.is_attached = True
        self.training.start()
        self.compiled.start()
        if discover:
            self.discovery.start()
        if self.frontend is not None:
            self.interrupts.start()
        self.rearm()

    def detach(self) -> None:
        """Take everything off the run."""
        with not_now(), self.turns.arming:
            self._take_off()

    def _take_off(self) -> None:
        self.is_attached = False
        self.discovery.stop()
        self.compiled.stop()
        self.interrupts.stop()
        self.arming.clear()
        self.backpass.graph.forget()
        self.training.stop()
        self.kept.clear()
        self.intent = stepper.GO
        self.points.forget_until()
        self.opstep.clear()

    def close(self) -> None:
        """Let the front end go, so that it leaves its terminal as it found it."""
        if self.frontend is not None:
            self.frontend.close()

    def add_model(self, root: nn.Module, name: str = "") -> Model:
        """Take in a model and set the points that waited for it."""
        model = self.models.add(root, name)
        self.arrivals.resolve_points()
        self.rearm()
        return model

    def rearm(self) -> None:
        """Make the taps what the points and the intent need."""
        with not_now(), self.turns.arming:
            if self.is_attached:
                self.opstep.arm()
                self.arming.apply(self.intent, self.pause)

    def report(
        self, phase: Phase, points: tuple[Point, ...], module: Any, args: Any, kwargs: Any, output: Any
    ) -> None:
        """What taps call. Never raises but to quit: a bug of ours detaches and lets the run go on."""
        if self._here.depth or not self.is_attached:
            return
        try:
            recomputed, is_root = is_in_backward(), id(module) in self.arming.taps.roots
            if phase is Phase.ENTER and is_root and not recomputed:
                self._begin(module, args, kwargs)
            if self.arming.sink.noting:
                values = (args, kwargs) if phase is Phase.ENTER else output
                self.backpass.note(phase, module, values, sys._getframe(2))
            if recomputed and not self.config.recompute:
                for point in points:
                    point.recomputed += 1
                return
            if self.opstep.is_laid:
                self.opstep.sweep(sys._getframe(2))
            if phase is Phase.ENTER and (is_root or self.opstep.is_wanted):
                self.opstep.entered(points, module, sys._getframe(2))
            if points or self.arming.sink.listening:
                self._consider(points, Event(phase, module, args, kwargs, output))
        except Exception as error:
            self.fail(error)

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """An outermost call begins."""
        if not self.discovery.is_on:
            self.arrivals.count(module)
        self.caches.note(args, kwargs)

    def _consider(self, points: tuple[Point, ...], event: Event) -> None:
        if points and is_tracing():
            return
        frame = sys._getframe(3)
        hit, trouble = self.judge.ask(points, event, frame) if points else (None, "")
        stepped = self.judge.has_arrived(event, frame) if self.arming.sink.listening else False
        if (hit is not None or stepped) and not is_tracing():
            self.opstep.arrived(event, frame)
            with self.opstep.pausing():
                self._stop(event, frame, hit, trouble)

    def fail(self, error: Exception) -> None:
        """Take a bug of ours off the run; what a signal handler of the program raised is passed on to it."""
        if is_from_a_signal(error):
            raise error
        with contextlib.suppress(Exception):
            self.detach()
        with contextlib.suppress(Exception):
            self.say(Notice(describe_bug(error), "detached; the run goes on untouched", level="error"))

    def _arrived(self, module: nn.Module, frame: FrameType, is_new: bool) -> None:
        if self._here.depth or not self.is_attached:
            return
        try:
            if is_new and self.models.owner_of(module) is None:  # a checkpoint calls parts by themselves
                self.arrivals.meet(module, frame)
            self.arrivals.count(module)
        except Exception as error:
            self.fail(error)

    def _stop(self, event: Event, frame: FrameType, point: Point | None, trouble: str) -> None:
        self.models.refresh()
        self.kept.trim()
        stack = build_stack(frame, self.models, event=event)
        if event.phase is Phase.EXIT and stack:
            stack[0].overwritten = self.inputs.overwritten(event.module)
        self.stop_in(stack, event, point, trouble)

    def stop_in(self, stack: list[Frame], event: Event, point: Point | None, trouble: str) -> None:
        """Pause at an event, with the module calls that it is in."""
        owner = self.models.owner_of(event.module)
        reason = f"{point.kind} {point.number}" if point is not None and point.number else ""
        pause = Pause(
            self.scope,
            stack,
            event,
            reason=reason,
            point=point,
            trouble=trouble,
            forward=owner.forwards if owner is not None else 0,
            python=stack[0].caller if stack else None,
        )
        if event.phase is Phase.EXIT:
            self.kept.keep(event.module, event.args, event.kwargs, event.output)
        self.hold(pause)

    def stop_here(self, frame: FrameType | None, reason: str, **options: Any) -> None:
        """Pause at a line of the user's code, as `set_trace()` does; the options of `line_pause`."""
        while frame is not None and is_ours(frame):
            frame = frame.f_back
        if frame is None:
            return
        self.models.refresh()
        pause = line_pause(self, frame, reason, **options)
        with self.opstep.pausing():
            self.hold(pause)

    def start(self, *, ask: bool) -> None:
        """Take the lines that come before the run; `ask` for more when the given ones run out."""
        self.hold(Pause(self.scope, is_start=True, asks=ask))

    def hold(self, pause: Pause) -> None:
        """Stand still in this thread until a line resumes; a second thread waits its turn."""
        self.stand.hold(pause)

    @property
    def is_silent(self) -> bool:
        """Is this thread inside of an evaluation, so that nothing stops in it?"""
        return self._here.depth > 0

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Meanwhile taps in this thread stay silent: an expression that runs the model does not re-enter."""
        before = self._here.depth
        self._here.depth = before + 1
        try:
            yield
        finally:
            self._here.depth = before  # also where Ctrl-C has cut off the end of an inner one

    def evaluate(self, text: str, *, deep: bool = True) -> tuple[Any, str, Outcome]:
        """Python in the paused frame: its value, what it printed, and what it did to the run."""
        with watching_line(self, text, deep=deep) as outcome:
            value, printed = run_python(text, self.scope)
        return value, printed, outcome
