"""A session: the parts of the debugger, put together for one process.

It is given an interpreter for lines and listeners for what there is to say; it prints nothing.
"""

from __future__ import annotations

import contextlib
from typing import Protocol

from torch import nn

from layerstep.calls.overwritten_inputs import OverwrittenInputs
from layerstep.config import Config
from layerstep.engine import stepper
from layerstep.engine.backward_pass import BackwardPass
from layerstep.engine.compiled import CompiledFunctions
from layerstep.engine.installation import Installation
from layerstep.engine.instrument import Instruments
from layerstep.engine.lifetime import call_at_exit, call_in_forked_children
from layerstep.engine.messages import Messages
from layerstep.engine.model_intake import ModelIntake
from layerstep.engine.module_calls import ModuleCalls
from layerstep.engine.pause import Pause
from layerstep.engine.points import Points
from layerstep.engine.prompt import Prompt
from layerstep.engine.resume import Resume
from layerstep.engine.run import Run
from layerstep.engine.standstill import Standstill
from layerstep.engine.stop import Nothing, Stop
from layerstep.engine.stop_decision import StopDecision
from layerstep.engine.threads import Turns
from layerstep.errors import UserError, describe_bug
from layerstep.module_paths.models import Model
from layerstep.process.interrupts import Interrupts, is_from_a_signal, not_now
from layerstep.views import Notice, View

__all__ = ["Interpreter", "Session"]


class Interpreter(Protocol):
    """Answers lines; handed in, so that the engine knows no command."""

    def interpret(self, session: Session, line: str) -> View | Resume | None: ...


class NoCommands:
    """Of a session that only measures: no line is ever handed in."""

    def interpret(self, session: Session, line: str) -> View | Resume | None:
        raise UserError("no commands are answered here")


class Session:
    """One debugger on one process: its parts, and how all of them are turned on and off.

    A command is handed the session. The parts themselves are given what they need, never the session.
    """

    def __init__(self, interpreter: Interpreter | None = None, config: Config | None = None) -> None:
        answering = interpreter or NoCommands()
        self.run = run = Run(config or Config(), self.fail)
        self.points = points = Points()
        self.instruments: Instruments[Session] = Instruments(self)
        self._messages = messages = Messages()
        self.say, self.listen = messages.say, messages.listen
        self.turns = Turns(run, points, self.say)
        self.interrupts = Interrupts(
            lambda: self.standstill.interrupted(), has_pause=lambda: run.pause is not None
        )
        self.prompt = Prompt(
            run,
            messages,
            interpret=lambda line: answering.interpret(self, line),
            instruments=self.instruments,
            interrupts=self.interrupts,
            turns=self.turns,
        )
        self.standstill = Standstill(
            run,
            points,
            prompt=self.prompt,
            turns=self.turns,
            instruments=self.instruments,
            interrupts=self.interrupts,
            messages=messages,
            detach=self.detach,
            rearm=self.rearm,
            add_model=self.add_model,
            open_call=lambda call: self.backward_pass.open(call),
        )
        self.decision = StopDecision(run, messages)
        self.backward_pass = BackwardPass(
            run, decision=self.decision, standstill=self.standstill, say=self.say, fail=self.fail
        )
        self.intake = ModelIntake(
            run,
            points,
            say=self.say,
            rearm=self.rearm,
            begin_forward=self._begin_forward,
            raised=self._raised,
            fail=self.fail,
        )
        self._told: BaseException | None = None
        """The exception that was told where it left a forward, until it has left the call around it."""
        self._put_on_the_run()
        call_in_forked_children(self._leave_forked_child)
        call_at_exit(self._leave_at_exit)

    def _put_on_the_run(self) -> None:
        """The parts that reach into the program: taps and what else is installed for points."""
        self.overwritten_inputs = OverwrittenInputs()
        self.compiled = CompiledFunctions(lambda _: self.rearm(), self.fail)
        calls = ModuleCalls(
            self.run,
            decision=self.decision,
            standstill=self.standstill,
            instruments=self.instruments,
            intake=self.intake,
            backward_pass=self.backward_pass,
            overwritten_inputs=self.overwritten_inputs,
            messages=self._messages,
            fail=self.fail,
        )
        self.installation = Installation(
            self.run,
            self.points,
            taps=calls.taps,
            instruments=self.instruments,
            backward_pass=self.backward_pass,
            overwritten_inputs=self.overwritten_inputs,
            compiled=self.compiled,
            messages=self._messages,
            rearm=self.rearm,
        )

    def attach(self, *, discover: bool = False) -> None:
        """Let points take effect; `discover` also finds models as they are called."""
        self.run.is_attached = True
        self.run.training.start()
        self.compiled.start()
        if discover:
            self.intake.discovery.start()
        if self.prompt.frontend is not None and self.prompt.frontend.has_keyboard:
            self.interrupts.start()
        self.rearm()

    def detach(self) -> None:
        """Take everything off the run."""
        with not_now(), self.turns.arming:
            self.run.is_attached = False
            self.intake.discovery.stop()
            self.compiled.stop()
            self.interrupts.stop()
            self.installation.clear()
            self.backward_pass.graph.forget()
            self.run.training.stop()
            self.run.backward_calls.stop()
            self.run.seen_calls.clear()
            self.run.intent = stepper.GO
            self.points.forget_until()
            self.prompt.peeks.refuse("the debugger is detached")

    def close(self) -> None:
        """Let the front end go, so that it leaves its terminal as it found it."""
        if self.prompt.frontend is not None:
            self.prompt.frontend.close()

    def add_model(self, root: nn.Module, name: str = "") -> Model:
        """Take in a model and set the points that waited for it."""
        return self.intake.add(root, name)

    def rearm(self) -> None:
        """Make the taps what the points and the intent need."""
        with not_now(), self.turns.arming:
            if self.run.is_attached:
                self.installation.apply()

    def start(self, *, ask: bool) -> None:
        """Take the lines that come before the run; `ask` for more when the given ones run out."""
        self.standstill.hold(Pause(self.run.scope, Stop(Nothing()), is_start=True, asks=ask))

    def fail(self, error: Exception) -> None:
        """Take a bug of ours off the run; what a signal handler of the program raised is passed on to it."""
        if is_from_a_signal(error):
            raise error
        with contextlib.suppress(Exception):
            self.detach()
        with contextlib.suppress(Exception):
            self.say(Notice(describe_bug(error), "detached; the run goes on untouched", level="error"))

    def _begin_forward(self) -> None:
        self.backward_pass.begin_forward()
        if self.prompt.peeks:
            self.prompt.peeks.serve()

    def raised_in_forward(self, error: BaseException) -> None:
        """An exception leaves a forward that can begin again: it is reported here, not again further out."""
        if self.intake.discovery.is_on:
            self._raised(error)
            self._told = error

    def _raised(self, error: BaseException) -> None:
        """An exception leaves an outermost call."""
        told, self._told = self._told, None
        if told is not error:
            for raised in self.instruments.at("raised"):
                raised(error)

    def _leave_forked_child(self) -> None:
        """Release in a child what it has inherited."""
        if self.run.is_attached:
            self.prompt.frontend = None
            self.turns.begin_anew()
            self.detach()

    def _leave_at_exit(self) -> None:
        if self.run.is_attached:
            self.detach()
