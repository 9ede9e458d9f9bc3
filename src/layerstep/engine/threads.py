"""The threads of a program: whose turn it is to stand at the prompt, and where each of them is."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from layerstep._torch import call_frames
from layerstep.calls.op_frame import running_modules
from layerstep.engine.pause import Pause
from layerstep.engine.points import Points
from layerstep.engine.resume import Kind
from layerstep.engine.run import Run
from layerstep.engine.stepper import Intent
from layerstep.process.frames import forget_locals, is_library_file, is_ours
from layerstep.process.thread_frames import frames_of_threads
from layerstep.views import Notice

__all__ = ["Place", "Turns", "places", "thread_name"]

_STEPS = (Kind.STEP, Kind.NEXT, Kind.INTO, Kind.FINISH, Kind.OP, Kind.KERNEL, Kind.BACK)
LOOK_SECONDS = 0.02
STANDS_AFTER = 25
"""After so many looks at which it has not moved, a thread that is stepped is taken to wait for another."""


class Turns:
    """One thread at a time pauses or answers. A step belongs to its thread: the others wait until it ends.

    They do not wait if the stepped thread itself waits, perhaps for them, or has ended.
    """

    def __init__(self, run: Run, points: Points, say: Callable[[Notice], None]) -> None:
        self._run = run
        self._points = points
        self._say = say
        self.are_named = False
        """Stops say in which thread they are, once there was a second one."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Make new locks: in a forked child, the thread that held one may not exist."""
        self.lock = threading.RLock()
        self.arming = threading.RLock()
        """Held by the thread that puts taps on or takes them off."""
        self.waiting: dict[int, Pause] = {}
        """The threads that have come to a stop while another one stands at the prompt."""

    @contextlib.contextmanager
    def taken(self, pause: Pause) -> Iterator[bool]:
        """Wait for the turn; False if what this thread wanted to stop at is gone meanwhile."""
        me = threading.get_ident()
        self.waiting[me] = pause
        try:
            has_waited = self._wait()
        finally:
            del self.waiting[me]
        try:
            yield not (has_waited and self._is_gone(pause))
        finally:
            self.lock.release()

    def _wait(self) -> bool:
        """Take the lock when no other thread is being stepped; was there one to wait for?"""
        has_waited, looks = False, 0
        at = None
        while True:
            has_waited |= not self.lock.acquire(blocking=False) and self.lock.acquire()
            intent = self._run.intent
            if not _is_step_elsewhere(intent):
                return has_waited
            now = _position(intent.thread)
            looks = looks + 1 if now == at else 0
            if now is None or looks > STANDS_AFTER:
                return has_waited
            at, has_waited = now, True
            self.lock.release()
            time.sleep(LOOK_SECONDS)

    def _is_gone(self, pause: Pause) -> bool:
        point = pause.point
        return point is not None and (not point.enabled or all(point is not each for each in self._points))

    def begin(self, pause: Pause) -> Intent | None:
        """A stop: the step of another thread, if one is under way, which goes on when this stop is left."""
        self._name(pause)
        intent = self._run.intent
        if not _is_step_elsewhere(intent):
            return None
        if _position(intent.thread) is None:
            self._say(Notice("the thread that was stepped has ended"))
            return None
        return intent

    def _name(self, pause: Pause) -> None:
        """Name threads from now on if this stop is not in the main one, or another one is in a model too."""
        if pause.thread == threading.main_thread().ident and not self.are_named:
            others = (frame for ident, frame in frames_of_threads().items() if ident != pause.thread)
            self.are_named = any(next(call_frames(frame), None) is not None for frame in others)
        else:
            self.are_named = True
        pause.thread_name = thread_name(pause.thread) if self.are_named else ""


def _is_step_elsewhere(intent: Intent) -> bool:
    is_step = intent.kind in _STEPS or intent.kind.is_by_line
    return is_step and intent.thread not in (0, threading.get_ident())


def _position(thread: int) -> tuple[int, int] | None:
    """Something that changes while a thread runs Python; None if there is no such thread any more."""
    frame = frames_of_threads().get(thread)
    return (id(frame), frame.f_lasti) if frame is not None else None


def thread_name(ident: int) -> str:
    """The name that the program gave a thread; those that it did not start itself have none."""
    found = next((thread for thread in threading.enumerate() if thread.ident == ident), None)
    if found is None or isinstance(found, threading._DummyThread):
        return f"{ident} (not started by Python)"
    return found.name


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thread of the program is."""

    name: str
    path: str
    """The innermost module that it runs; empty if it runs none."""
    state: str
    frame: FrameType | None
    """The innermost frame of the program's own code."""


def places(run: Run, turns: Turns) -> list[Place]:
    """Every thread but ours, the paused one first."""
    pause = run.pause
    frames = frames_of_threads()
    ours = {t.ident for t in threading.enumerate() if t.name.startswith("layerstep")}
    order = sorted(frames, key=lambda ident: (pause is None or ident != pause.thread, ident))
    return [
        _place(run, ident, frames[ident], waiting=turns.waiting.get(ident))
        for ident in order
        if ident not in ours
    ]


def _place(run: Run, ident: int, frame: FrameType, *, waiting: Pause | None) -> Place:
    modules = running_modules(frame)
    for call in call_frames(frame):
        forget_locals(call)
    path = run.models.path_of(modules[0]) if modules else ""
    own: FrameType | None = frame
    while own is not None and (is_ours(own) or is_library_file(own.f_code.co_filename)):
        own = own.f_back
    is_here = run.pause is not None and run.pause.thread == ident
    return Place(thread_name(ident), path, "paused here" if is_here else _state(waiting), own)


def _state(waiting: Pause | None) -> str:
    if waiting is None:
        return "runs"
    return f"waits for its turn to stop{f' at {waiting.reason}' if waiting.reason else ''}"
