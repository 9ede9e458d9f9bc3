"""The prompt of a session: lines come in, are answered in the paused thread, and what they leave behind."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from layerstep.engine.instrument import Instruments
from layerstep.engine.line_effects import LineEffects
from layerstep.engine.messages import Frontend, Messages, Watch
from layerstep.engine.pause import POLL_SECONDS, Inbox, Line, Pause, describe
from layerstep.engine.peeks import Peeks
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.run import Run
from layerstep.engine.stop import Shown, Stop
from layerstep.engine.threads import Turns
from layerstep.errors import UserError, message_of
from layerstep.expressions.scope import run_python
from layerstep.imports import our_imports
from layerstep.process.interrupts import Interrupts, is_from_a_signal
from layerstep.side_effects.guard import Outcome, undisturbed
from layerstep.views import Group, Notice, Text, View

__all__ = ["Prompt"]

END_OF_INPUT = "\x04"
_LEAVE = (END_OF_INPUT, "exit()", "quit()", "exit", "quit")
"""What ends `interact`."""
MOST_CHARACTERS = 1_000


def _bounded(text: str) -> str:
    """An error quotes the line, which may be long."""
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


class Prompt:
    """Takes lines at a pause, answers them, and keeps what belongs to the conversation."""

    def __init__(
        self,
        run: Run,
        messages: Messages,
        *,
        interpret: Callable[[str], View | Resume | None],
        instruments: Instruments[Any],
        interrupts: Interrupts,
        turns: Turns,
    ) -> None:
        self.run = run
        self._messages = messages
        self._interpret = interpret
        self._instruments = instruments
        self._interrupts = interrupts
        self._turns = turns
        self._inbox = Inbox()
        self.stop_number = 0
        """The number of the stop that lines are taken at, or were last. A late line is told by it."""
        self.peeks = Peeks(run, self.run_line)
        """Lines that are answered while the run goes on."""
        self.frontend: Frontend | None = None
        self.script: deque[str] = deque()
        """Lines that are taken before the front end is asked."""
        self.history: list[str] = []
        self.aliases: dict[str, str] = {}
        self.watches: dict[int, Watch] = {}
        self.shown: View | None = None
        """The last answer that can be exported."""
        self.transcript: str | None = None
        self.written: list[Path] = []
        """The files that `export` has written."""
        self.dump_to: Path | None = None
        """Where a catchpoint that fires in batch work writes its core file."""
        self.effects = LineEffects(run)
        """What lines have done to the run."""
        self.interacting = False
        """Is every line Python, until the end of input or `exit()`?"""
        self.sourcing: list[Path] = []
        """The files of commands that are being run: a file cannot run itself."""
        self.wrong_lines: list[str] = []
        """The given lines that were answered by an error."""

    def end(self) -> None:
        """The run goes on: lines that are still here find no answer."""
        self._inbox.close("the run has gone on")

    def serve(self, pause: Pause) -> Resume:
        """Say where the run stands, then take lines until one of them resumes it."""
        self.stop_number += 1
        self._inbox.open()
        self.interacting = False
        own = pause.point.commands if pause.point is not None else ()
        if not (own and own[0] == "silent") and not pause.is_start:
            self._show(pause)
        if self.dump_to is not None and pause.is_caught:
            self.run_line(f"dump {self.dump_to}", origin="--dump")
        for line in own:
            if line != "silent" and (resume := self.run_line(line, origin=pause.reason)[1]) is not None:
                return resume
        while self.script:
            line = self.script.popleft()
            answer, resume = self.run_line(line)
            if isinstance(answer, Notice) and answer.level == "error":
                self.wrong_lines.append(line)
            if resume is not None:
                return resume
            if pause.is_start and self.wrong_lines and self.frontend is None:
                self.script.clear()  # there is no run without its points
        if self.frontend is None or not pause.asks:
            return Resume(Kind.CONTINUE if pause.is_start else Kind.DETACH)
        self.peeks.serve()
        frontend = self.frontend  # it may give up while it is asked
        frontend.paused()
        try:
            resume_or_none = self._inbox.serve(
                self._run_posted, until=lambda: self.frontend is None, leaving=frontend.resumed
            )
        finally:
            frontend.resumed()
        return resume_or_none or Resume(Kind.DETACH)

    def _show(self, pause: Pause) -> None:
        with self.run.evaluating():
            notices = [notice for said in self._instruments.at("stopped") for notice in said()]
        view, watched = self._described(pause)
        for number, now in watched.items():
            self.watches[number].last = now
        shown = Group((*notices, view)) if notices else view
        facts = {"number": self.stop_number, **pause.facts(self.run.training.count)}
        self._messages.say(shown, "stop", stop=facts)

    def show(self, stop: Stop) -> None:
        """Say what a stop would say, without one."""
        self._messages.say(self._described(Pause(self.run.scope, stop))[0])

    def _described(self, pause: Pause) -> tuple[View, dict[int, str]]:
        """A stop as a view, and how each watched expression looks.

        Ctrl-C ends the work on it, and no exception of a `__repr__` ends the run.
        """
        try:
            quiet = undisturbed(self.run.models, deep=False)
            with self.run.evaluating(), quiet, self._interrupts.cancellable():
                watched = {n: watch.now(self.run.scope) for n, watch in self.watches.items()}
                rows = [(f"watch {n}", self.watches[n].row(now)) for n, now in watched.items()]
                shown = Shown(self.run.config.sample_above, self.run.config.copy_input_bytes, rows)
                return describe(pause, shown), watched
        except Exception:
            raise
        except BaseException as error:
            if is_from_a_signal(error):
                raise
            what = "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__
            place = pause.stack[0].path if pause.stack else "the program"
            text = f"stopped at {place}; {what} before its values were shown"
            return Notice(text, "`where`", level="warn"), {}

    @property
    def at_end(self) -> str:
        """What the end of input will do."""
        pause = self.run.pause
        if self.interacting:
            return "`interact` ends"
        if pause is None or pause.is_over:
            return "the prompt ends"
        if pause.is_start:
            return "the run starts"
        return "detached; the run goes on without stops"

    def submit_end(self, *, is_final: bool = False) -> Future[View | None] | None:
        """The end of input: it ends `interact`, else the run starts if it has not, or goes on alone.

        `is_final`: no more lines can come, as at the end of a pipe.
        """
        self.interacting = self.interacting and not is_final
        return self._inbox.post(Line(END_OF_INPUT))

    def leave(self, stop: int, reason: str) -> None:
        """Let the run go on from a stop, if it still stands there: no one is there to ask."""
        self.interacting = False
        self._inbox.post(Line("continue", stop, origin=reason))

    def give_up(self, error: Exception) -> None:
        """A front end has failed: there is no one to ask any more, so the run must not wait."""
        self.frontend = None
        self._messages.say(
            Notice(
                f"the prompt failed: {type(error).__name__}: {message_of(error)}",
                "detached; the run goes on",
                level="error",
            )
        )

    def run_line(self, line: str, *, origin: str = "") -> tuple[View | None, Resume | None]:
        """Interpret one line here and now, show the answer, and say whether the run goes on."""
        if self.interacting and line.strip() in _LEAVE:
            self.interacting = False
            back = Notice("back at the debugger's prompt")
            self._messages.say(back, "answer", "" if line == END_OF_INPUT else line, origin=origin)
            return back, None
        if line == END_OF_INPUT:
            starting = self.run.pause is not None and self.run.pause.is_start
            return None, Resume(Kind.CONTINUE if starting else Kind.DETACH)
        answer = self.answer(f"!{line}" if self.interacting and line.strip() else line)
        if isinstance(answer, Resume):
            self._messages.say(Text(""), "resume", line, origin=origin)
            return None, answer
        self.shown = self.shown if answer is None or isinstance(answer, Notice) else answer
        self._messages.say(answer if answer is not None else Text(""), "answer", line, origin=origin)
        return answer, None

    def answer(self, line: str) -> View | Resume | None:
        """What the interpreter says; nothing is shown.

        An exception of any kind is the line's own and ends nothing else.
        """
        self._interrupts.came_late = False
        try:
            with our_imports(), self.run.evaluating(), undisturbed(self.run.models, deep=False):
                return self._interpret(line)
        except UserError as error:
            return Notice(_bounded(error.message), _bounded(error.hint), level="error")
        except KeyboardInterrupt:
            return Notice("interrupted", level="warn")
        except BaseException as error:
            if is_from_a_signal(error):
                raise
            if not isinstance(error, Exception):  # SystemExit, GeneratorExit: of the line, or of a `__repr__`
                text = f"{type(error).__name__}: {message_of(error)}".rstrip(": ")
                return Notice(text, "the run is as it was; `quit` ends the program", level="error")
            words = line.split()[:1]
            where = f", in {words[0][:40]!r}" if words else ""
            text = f"a bug in layerstep{where}: {type(error).__name__}: {_bounded(message_of(error))}"
            return Notice(text, "the run is as it was", level="error")

    def evaluate(self, text: str, *, deep: bool = True) -> tuple[Any, str, Outcome]:
        """Python in the paused frame: its value, what it printed, and what it did to the run."""
        with self.effects.watching(text, deep=deep) as outcome:
            value, printed = run_python(text, self.run.scope)
        return value, printed, outcome

    def _run_posted(self, line: Line) -> tuple[View | None, Resume | None]:
        """Answer a line that was handed in, in the frame that it names."""
        pause = self.run.pause
        if line.stop is not None and line.stop != self.stop_number:
            raise _gone_on(line.stop)
        if line.frame is None or pause is None:
            return self.run_line(line.text, origin=line.origin)
        before = pause.selected
        pause.select(line.frame)
        try:
            return self.run_line(line.text, origin=line.origin)
        finally:
            pause.select(before)

    def submit(
        self, text: str, *, stop: int | None = None, frame: int | None = None, origin: str = ""
    ) -> Future[View | None]:
        """Hand in a line from any thread; the paused thread answers, or this one if nothing is paused.

        `stop`: the line is meant for the stop of that number, and refused at any other.
        """
        line = Line(text, stop, frame, origin)
        while True:  # a pause may begin or end meanwhile
            pause = self.run.pause
            is_elsewhere = pause is not None and pause.thread != threading.get_ident()
            if is_elsewhere and (posted := self._inbox.post(line)) is not None:
                return posted
            if self._turns.lock.acquire(timeout=POLL_SECONDS):
                break
        try:
            return self._answer_here(line)
        finally:
            self._turns.lock.release()

    def _answer_here(self, line: Line) -> Future[View | None]:
        future: Future[View | None] = Future()
        if line.stop is not None:
            future.set_exception(_gone_on(line.stop))
            return future
        view, resume = self.run_line(line.text, origin=line.origin)
        if resume is not None:
            view = Notice("nothing is paused", f"{line.text!r} has nothing to resume", level="error")
        future.set_result(view)
        return future


def _gone_on(stop: int) -> UserError:
    return UserError(
        f"the run has gone on since stop {stop}", "look where it stands, then type the line again"
    )
