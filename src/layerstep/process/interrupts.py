"""Ctrl-C: one press stops at the next module, or cancels the line at the prompt; two go to the program.

One handler serves all sessions of the process. It is installed while a session with a prompt is attached.
Afterwards the program's own handler is put back, in whatever order the sessions leave.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from layerstep.process import workers
from layerstep.process.forks import keeps_session
from layerstep.process.thread_frames import frames_of_threads

__all__ = ["Interrupts", "is_from_a_signal", "not_now", "wake_main_thread"]

TWICE_WITHIN = 2.0
"""Seconds in which a second Ctrl-C goes to the program."""
STUCK_AFTER = 5.0
"""Seconds after which a main thread that has not moved counts as waiting for ever."""


class _Keyboard:
    """SIGINT of this process. It needs no lock: Python runs handlers in the main thread only."""

    def __init__(self) -> None:
        self.sessions: list[Interrupts] = []
        self.before: Any = None
        self.last = float("-inf")
        self.held = 0
        self.is_waiting = False

    @property
    def is_ours(self) -> bool:
        """Is our handler in place? If the program has set its own since, Ctrl-C belongs to that."""
        return signal.getsignal(signal.SIGINT) == self.handle

    def join(self, session: Interrupts) -> bool:
        if not self.sessions:
            self.before = signal.getsignal(signal.SIGINT)
            if self.before in (None, signal.SIG_IGN):  # set from C; or by `nohup` and `&`, for a reason
                return False
            self.last = float("-inf")
            workers.protect_workers()
            signal.signal(signal.SIGINT, self.handle)
        self.sessions.append(session)
        self.tell_workers()
        return True

    def leave(self, session: Interrupts) -> None:
        self.sessions.remove(session)
        self.tell_workers()
        if not self.sessions and self.is_ours:
            signal.signal(signal.SIGINT, self.before)

    def tell_workers(self) -> None:
        workers.debugger_takes(bool(self.sessions) and self.is_ours)
        workers.forget_notes()

    def in_child(self) -> None:
        """In a forked process, which has no session: install the handler that the program would have."""
        if keeps_session():
            return
        self.sessions.clear()
        self.held, self.is_waiting = 0, False
        if self.is_ours:
            signal.signal(signal.SIGINT, workers.shielded(self.before))

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.held:
            self.is_waiting = True
            return
        now = time.monotonic()
        twice = now - self.last < TWICE_WITHIN
        self.last = now
        latest_first = sorted(reversed(self.sessions), key=lambda each: each.has_pause(), reverse=True)
        if not twice and any(session.interrupted() for session in latest_first):
            return
        self.last = float("-inf")
        workers.pass_on()
        self._pass_on(number, frame)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Do what Ctrl-C would do without us."""
        if callable(self.before):
            self.before(number, frame)
        else:
            signal.signal(signal.SIGINT, self.before)
            signal.raise_signal(signal.SIGINT)

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1
            if self.is_waiting and not self.held:
                self.is_waiting = False
                self.handle(signal.SIGINT, None)


_keyboard = _Keyboard()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keyboard.in_child)


def not_now() -> contextlib.AbstractContextManager[None]:
    """Hold Ctrl-C back until the end of this block, which must not stop half way."""
    if threading.current_thread() is threading.main_thread():
        return _keyboard.held_back()
    return contextlib.nullcontext()


class Interrupts:
    """What one session does about Ctrl-C, while it is attached and has a prompt."""

    def __init__(self, interrupted: Callable[[], bool], has_pause: Callable[[], bool]) -> None:
        self.interrupted = interrupted
        """Called at a first Ctrl-C; False passes it to the program."""
        self.has_pause = has_pause
        self.came_late = False
        """Ctrl-C came while the run stood still and nothing could be cancelled."""
        self._cancellable: int | None = None
        """The thread that works on a line or a stop."""
        self._sent: int | None = None
        """The thread that we sent a KeyboardInterrupt. It may not have arrived yet."""
        self._leaving = threading.Lock()

    @property
    def is_on(self) -> bool:
        return self in _keyboard.sessions

    def start(self) -> None:
        if not self.is_on and threading.current_thread() is threading.main_thread():
            _keyboard.join(self)

    def stop(self) -> None:
        if self.is_on and threading.current_thread() is threading.main_thread():
            _keyboard.leave(self)

    def forget(self) -> None:
        """Called at a stop: the next Ctrl-C counts as a first one."""
        _keyboard.last = float("-inf")
        self.came_late = False
        if self.is_on:
            _keyboard.tell_workers()

    @contextlib.contextmanager
    def cancellable(self) -> Iterator[None]:
        """Let Ctrl-C raise KeyboardInterrupt in this thread, once, and not after the block."""
        me = threading.get_ident()
        outer, self._cancellable = self._cancellable, me
        try:
            yield
        finally:
            if me == threading.main_thread().ident:
                self._cancellable = outer
            else:
                with self._leaving:
                    if self._sent == me:  # if it has not arrived yet, it would hit the program
                        self._sent = None
                        _take_back()
                    self._cancellable = outer

    def cancel(self) -> bool:
        """Interrupt the work on a line or a stop; False if there is none."""
        thread = self._cancellable
        if thread is None:
            return False
        self.forget()
        if thread == threading.get_ident():
            self._cancellable = None  # so that no second one arrives while this one is handled
            raise KeyboardInterrupt
        with self._leaving:
            if self._cancellable == thread:
                self._cancellable, self._sent = None, thread
                _raise_in(thread, KeyboardInterrupt)
        return True


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an exception in another thread at its next line of Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


class _TakenBackError(BaseException):
    """Replaces an exception that was sent to this thread."""


def _take_back() -> None:
    """Let no exception that was sent to this thread arrive after this.

    Clearing the pending exception would be simpler. But up to 3.12 Python then looks for one forever in every
    thread: that slows the program, and under a trace function Python 3.11 never reaches the next instruction.
    """
    with contextlib.suppress(_TakenBackError):
        _raise_in(threading.get_ident(), _TakenBackError)
        for _ in range(1000):  # it arrives at the end of an iteration
            pass


def is_from_a_signal(error: BaseException) -> bool:
    """Did a signal handler of the program raise this, as `sys.exit()` at SIGTERM? Then the program gets it.

    A handler runs wherever the main thread is, also at the prompt.
    """
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {code for handler in handlers if (code := _code_of(handler)) is not None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    """The code of a handler that is written in Python, except our own."""
    if handler == _keyboard.handle:
        return None
    function = getattr(handler, "__func__", handler)
    code = getattr(function, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None


def wake_main_thread(error: type[SystemExit]) -> bool:
    """Called in another thread: end the main thread by an exception, because it may wait for ever.

    A signal ends a wait for a lock. Where the program ignores SIGINT or has its own handler, the exception is
    raised at the main thread's next line; if the thread reaches none, the process ends at once.
    """
    main = threading.main_thread()
    if threading.current_thread() is main or main.ident is None:
        return False
    is_usual = _keyboard.is_ours or signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main.ident, signal.SIGINT)
        return True
    _raise_in(main.ident, error)
    watch = threading.Thread(target=_end_if_stuck, args=(main.ident, error().code), daemon=True)
    watch.start()
    return True


def _end_if_stuck(thread: int, code: Any) -> None:
    at = _place_of(thread)
    time.sleep(STUCK_AFTER)
    if at is not None and _place_of(thread) == at:
        os._exit(code)


def _place_of(thread: int) -> tuple[int, int] | None:
    frame = frames_of_threads().get(thread)
    return (id(frame), frame.f_lasti) if frame is not None else None
