"""The history of a run: a checkpoint at each training step, and the way back to one.

The process that the shell has started is the first one. When the run goes back, it becomes a waiter
(`waiter.py`), and the run is a checkpoint of it from then on. A run that goes back from there only ends: the
first process is the parent of all of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from layerstep.engine.instrument import Instrument
from layerstep.engine.pause import Pause
from layerstep.engine.point import Point, PointKind
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.history import waiter
from layerstep.history.checkpoint import Checkpoint, Handed, fork_checkpoint
from layerstep.history.forking import HELD, reap_orphans
from layerstep.history.handover import (
    Conversation,
    PointNote,
    conversation,
    go_on_with,
    set_at_stop,
    set_points,
)
from layerstep.history.refusals import live_children, trial, why_not
from layerstep.history.thinning import superfluous
from layerstep.process.frames import program_frames
from layerstep.tensors.format import human_bytes
from layerstep.training_steps.steps import Stepped
from layerstep.views import Notice

__all__ = ["History"]

EVERY = 1
KEEP = 8


class History(Instrument):
    """Takes checkpoints at the end of training steps, and hands the run over to one."""

    command = "history"

    def __init__(self, session: Session) -> None:
        self._session = session
        self.is_on = False
        self.every = EVERY
        self.keep = KEEP
        self.checkpoints: list[Checkpoint] = []
        """From the oldest to the newest."""
        self.seconds = 0.0
        """What the last one took."""
        self.is_between_steps = False
        """Does the run stand still where a step has ended and no other has begun?"""
        self.trouble = ""
        """Why the last checkpoint that was due could not be taken."""
        self._told: set[str] = set()
        self._owner = 0
        """The process that these checkpoints belong to: in a child that the program forks it is another."""
        self._first = 0
        self._news: tuple[int, int] | None = None
        """A pipe to the first process: who is the run."""
        self._leaving: list[int] = []
        """Children that were told to end and are not reaped yet."""
        self._handed: Conversation | None = None
        """What the user had when the run went back."""
        self._unset: list[PointNote] = []
        """Points that can be set at a stop only."""
        self._target: tuple[int, int] | None = None
        """Training steps to run again up to, and how many were done when the run was left."""
        self._disabled: list[Point] = []

    def start(self, every: int, keep: int) -> None:
        """Take checkpoints from now on; a UserError says why that cannot be."""
        reason = why_not(self._session.run.models) or ("" if self.is_on else trial())
        if reason:
            raise UserError(f"no history here: {reason}", "`snapshot` keeps the state of the model alone")
        self.every, self.keep, self.is_on = every, keep, True
        self._listen(True)
        self._thin()

    def stop(self) -> int:
        """Take no more checkpoints, and drop those that exist; returns how many."""
        self.is_on = False
        self._listen(False)
        count = len(self.checkpoints)
        self._let_go(list(self.checkpoints))
        return count

    def clear(self) -> None:
        """The session detaches: at the end of the run, too, where no process may be left."""
        if not self._owner:
            self.is_on = False
            return
        if os.getpid() == self._owner:
            self.stop()
            self._reap(wait=True)
        for checkpoint in self.checkpoints:  # a child of the program, which must not keep them alive
            checkpoint.line.close()
        self.checkpoints.clear()
        for end in self._news or ():
            with contextlib.suppress(OSError):
                os.close(end)
        self._news, self._owner, self.is_on = None, 0, False

    def cost(self) -> list[str]:
        if not self.is_on:
            return []
        each = "each training step" if self.every == 1 else f"{self.every} training steps"
        took = f", {self.seconds * 1e3:.0f} ms the last time" if self.seconds else ""
        held = sum(checkpoint.own_bytes for checkpoint in self.checkpoints)
        return [f"a fork after {each}{took}; {len(self.checkpoints)} checkpoints hold {human_bytes(held)}"]

    def _listen(self, wanted: bool) -> None:
        training = self._session.run.training
        training.listen(training.after, self._stepped, wanted)

    def _stepped(self, stepped: Stepped) -> None:
        """An optimizer has stepped. The first one counts the training steps."""
        if self._session.run.is_silent or stepped.number != 1 or not self.is_on:
            return
        done = self._session.run.training.count
        is_due = done % self.every == 0 or (self._target is not None and done == self._target[0])
        is_back = self._take(done) if is_due else False
        if self._target is not None and done >= self._target[0]:
            self._arrive()
        elif is_back:
            self._go_on_silently()

    def _take(self, done: int) -> bool:
        """Leave a checkpoint here. If the run ever goes on in it, it leaves another one first; is this so?"""
        is_back = False
        reason = why_not(self._session.run.models)
        if reason:
            self._tell_once(reason)
            return False
        self._own()
        began = time.perf_counter()
        try:
            while isinstance(taken := fork_checkpoint(done), Handed):
                is_back, began = True, time.perf_counter()
                self._take_over(taken)
        except OSError as error:
            self._tell_once(f"the process cannot be forked: {error.strerror or error}")
            return is_back
        self.trouble = ""
        self.checkpoints.append(taken)
        self._thin()
        self.seconds = time.perf_counter() - began
        return is_back

    def _own(self) -> None:
        self._owner = os.getpid()
        if self._news is None:
            self._first = self._owner
            self._news = os.pipe()

    def _tell_once(self, reason: str) -> None:
        self.trouble = reason
        if reason not in self._told:
            self._told.add(reason)
            self._session.say(Notice(f"no checkpoint: {reason}", level="warn"))

    def _thin(self) -> None:
        while True:
            steps = [checkpoint.step for checkpoint in self.checkpoints]
            place = superfluous(steps, every=self.every, keep=self.keep)
            if place is None:
                break
            self._let_go([self.checkpoints[place]])
        self._reap(wait=False)

    def _let_go(self, checkpoints: list[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            checkpoint.drop()
            self.checkpoints.remove(checkpoint)
            self._leaving.append(checkpoint.process)

    def _reap(self, *, wait: bool) -> None:
        """Those that the run before this one has forked are reaped by the first process."""
        for process in list(self._leaving):
            try:
                is_over = os.waitpid(process, 0 if wait else os.WNOHANG)[0] != 0
            except ChildProcessError:
                is_over = True
            if is_over:
                self._leaving.remove(process)

    def nearest(self, target: int) -> Checkpoint:
        """The last checkpoint from which a training step can be reached; a UserError if there is none."""
        self._let_go([each for each in self.checkpoints if not each.is_alive])
        if not self.checkpoints:
            what = self.trouble or "no training step has ended since `history on`"
            what, hint = (what, "`snapshot`") if self.is_on else ("history is off", "`history on` takes them")
            raise UserError(f"there is no checkpoint to go back to: {what}", hint)
        if reason := live_children():
            raise UserError(f"cannot go back: {reason}", "let them end first")
        reachable = [each for each in self.checkpoints if each.step <= target]
        if not reachable:
            oldest = self.checkpoints[0].step
            back = self._session.run.training.count - oldest
            raise UserError(
                f"the oldest checkpoint is at the beginning of step {oldest + 1}", f"`back step {back}`"
            )
        return reachable[-1]

    def resuming(self, pause: Pause, resume: Resume) -> None:
        """The user has typed `back step`, and the prompt is closed. This process does not go on."""
        if resume.kind is not Kind.BACK_STEP:
            return
        try:
            self._hand_over(self.nearest(resume.step), resume.step)
        except (UserError, OSError) as error:
            self._session.say(Notice(f"the run could not go back: {error}", level="error"))

    def _hand_over(self, chosen: Checkpoint, target: int) -> NoReturn:
        content = {
            "target": (target, self._session.run.training.count),
            "alive": [each.process for each in self.checkpoints],
            "settings": (self.every, self.keep, self.is_on),
            "conversation": conversation(self._session),
        }
        self._let_go([each for each in self.checkpoints if each.step > chosen.step])
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        handed = Handed(self._first, content)
        assert self._news is not None
        if os.getpid() == self._first:
            self._wait_in_place(chosen, handed)
        os.write(self._news[1], waiter.MESSAGE.pack(chosen.process))
        chosen.go(handed)
        os._exit(0)

    def _wait_in_place(self, chosen: Checkpoint, handed: Handed) -> NoReturn:
        """Become the waiter: no thread and no memory of the program is left here, but its number."""
        assert self._news is not None
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
        reap_orphans()
        os.set_inheritable(self._news[0], True)
        chosen.go(handed)
        words = [str(chosen.process), str(self._news[0])]
        os.execv(sys.executable, [sys.executable, "-I", "-S", str(Path(waiter.__file__)), *words])

    def _take_over(self, handed: Handed) -> None:
        """This was a checkpoint; it is the run now."""
        content = handed.content
        self._owner = os.getpid()
        self._leaving.clear()
        for checkpoint in list(self.checkpoints):
            if checkpoint.process not in content["alive"]:
                checkpoint.line.close()
                self.checkpoints.remove(checkpoint)
        self.every, self.keep, self.is_on = content["settings"]
        self._target = content["target"]
        self._handed = content["conversation"]
        go_on_with(self._session, content["conversation"])

    def _go_on_silently(self) -> None:
        """There is no checkpoint where the user wants to be: run there from an earlier one, without stops.

        Edits act again as they did, or the steps would not be the same.
        """
        speaking = [each for each in self._session.points if each.stops or each.kind is PointKind.LOG]
        self._disabled = [each for each in speaking if each.enabled]
        for point in self._disabled:
            point.enabled = False
        self._session.standstill.go_on()

    def _arrive(self) -> None:
        """The run has come back to where the user wants it: stop there."""
        assert self._target is not None
        done, before = self._target
        self._target = None
        for point in self._disabled:
            point.enabled = True
        self._disabled.clear()
        if self._handed is not None:
            self._unset = set_points(self._session, self._handed)
            self._handed = None
        back = before - done
        far = f"; {back} step{'s' * (back != 1)} back" if back else ""
        reason = f"at the beginning of step {done + 1}{far}"
        frame = next(program_frames(sys._getframe(1)), sys._getframe(1))
        self.is_between_steps = True
        try:
            self._session.standstill.stop_here(frame, reason)
        finally:
            self.is_between_steps = False

    def stopped(self) -> list[Notice]:
        """At the first stop after the run went back: points that could not be set before it."""
        unset, self._unset = self._unset, []
        return set_at_stop(self._session, unset) if unset else []
