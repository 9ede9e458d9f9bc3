"""Lines from a pipe, a file, `input()` or a dumb terminal."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.frontends.output import PROMPT, Screen
from layerstep.line_syntax import is_complete
from layerstep.views import Notice

__all__ = ["Plain"]

CI_GRACE_SECONDS = 2.0
"""In CI an open, silent pipe counts as the end of input: a job must not hang on it."""


_NO_INPUT = Notice(
    "this notebook takes no input, so the run goes on",
    "`%%layerstep LINE; LINE` and `DebugConsole(model, commands=[…])` take lines without it",
    level="warn",
)


class Plain:
    """Reads lines in a thread of its own and posts them; the end of input detaches."""

    has_keyboard = True

    def __init__(
        self,
        session: Session,
        screen: Screen,
        stream: IO[str] | None = None,
        *,
        ask: Callable[[str], str] | None = None,
    ) -> None:
        self._session = session
        self._screen = screen
        self._stream = stream
        self._ask = ask
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._has_read = False
        self._ahead: deque[str] = deque()
        """Lines that another process has read from the same pipe and not used."""

    def paused(self) -> None:
        self._wanted.set()
        if self._is_over:
            self._session.prompt.submit_end(is_final=True)
        elif self._thread is None:
            self._thread = threading.Thread(target=self._read, name="layerstep-plain", daemon=True)
            self._thread.start()

    def resumed(self) -> None:
        self._wanted.clear()

    def close(self) -> None:
        """There is nothing to put back."""

    def hand_over(self) -> Any:
        return self._is_over, self._has_read, [*self._ahead, *self._read_ahead().splitlines()]

    def take_over(self, handed: Any) -> None:
        self._read_ahead()  # the other process has used or handed over what is in this buffer
        self._is_over, self._has_read, ahead = handed
        self._ahead = deque(ahead)
        self._wanted, self._thread = threading.Event(), None

    def _read_ahead(self) -> str:
        """What is in the stream's buffer. A pipe is shared with other processes, and its buffer is not."""
        if self._stream is None:
            return ""
        try:
            number = self._stream.fileno()
        except (OSError, ValueError, AttributeError):
            return self._stream.read()  # no pipe at all: the text is here
        kept, empty = os.dup(number), os.open(os.devnull, os.O_RDONLY)
        try:
            os.dup2(empty, number)  # now the stream ends where its buffer does
            return self._stream.read()
        finally:
            os.dup2(kept, number)
            os.close(kept)
            os.close(empty)

    def _read(self) -> None:
        try:
            while self._wanted.wait():
                text = self._next()
                self._wanted.wait()
                if text is None:
                    if self._ask is None:
                        self._is_over = True
                    else:
                        self._thread = None  # a notebook is asked anew at the next stop
                    if self._is_terminal:
                        self._session.say(Notice(f"Ctrl-D: {self._session.prompt.at_end}"))
                    self._session.prompt.submit_end(is_final=True)
                    return
                if self._ask is not None or self._is_terminal:
                    self._screen.typed = text
                with contextlib.suppress(UserError):  # the run went on by another hand as the line was sent
                    self._session.prompt.submit(text).result()
        except Exception as error:
            self._is_over = True
            self._session.prompt.give_up(error)

    @property
    def _is_terminal(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def _next(self) -> str | None:
        """One whole input: a line, or several where the first says that it goes on. None at the end."""
        text = ""
        while True:
            first = ">>> " if self._session.prompt.interacting else PROMPT
            line = self._line(first if not text else "... ")
            if line is None:
                return text or None
            text = f"{text}\n{line}" if text else line
            if is_complete(f"!{text}" if self._session.prompt.interacting else text):
                return text

    def _line(self, prompt: str) -> str | None:
        if self._ask is not None:
            try:
                return self._ask(prompt)
            except EOFError:
                return None
            except Exception as error:
                if type(error).__name__ != "StdinNotImplementedError":
                    raise
                self._session.say(_NO_INPUT)  # a notebook that runs as a whole
                return None
        assert self._stream is not None
        if self._ahead:
            return self._ahead.popleft()
        if self._is_terminal:
            self._screen.console.file.write(prompt)
            self._screen.console.file.flush()
        elif not self._has_read and os.environ.get("CI") and not self._has_data():
            return None
        self._has_read = True
        line = self._stream.readline()
        return line.rstrip("\n") if line else None

    def _has_data(self) -> bool:
        """Does anything feed this pipe? Asked before the first line only: later ones may be in a buffer."""
        assert self._stream is not None
        with contextlib.suppress(OSError, ValueError, AttributeError):
            ready, _, _ = select.select([self._stream.fileno()], [], [], CI_GRACE_SECONDS)
            return bool(ready)
        return True
