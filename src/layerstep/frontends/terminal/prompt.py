"""The prompt: history, completion, highlighting, a toolbar; in a thread of its own.

The model's thread is inside a hook and serves the inbox. prompt_toolkit wants an event loop, and the
program may already run one (a notebook, an async trainer), so it gets its own thread.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from collections.abc import Iterable
from types import FrameType
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.output import ColorDepth, Output, create_output
from prompt_toolkit.styles import DynamicStyle

from layerstep.calls.events import Phase
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.frontends.completion import complete
from layerstep.frontends.output import PROMPT, Screen
from layerstep.frontends.terminal.style import LineLexer, style_named
from layerstep.frontends.terminal.tracebacks import Tracebacks
from layerstep.frontends.terminal.typed_lines import typed_lines
from layerstep.line_syntax import is_complete
from layerstep.views import Notice

__all__ = ["Terminal", "status_of"]


_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class _Cancelled(Exception):
    """The run went on by another hand while the prompt was open."""


class _Completions(Completer):
    def __init__(self, session: Session) -> None:
        self._session = session

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        for candidate in complete(self._session, document.text_before_cursor):
            shown = candidate.shown or candidate.text.rpartition(".")[2]
            yield Completion(
                candidate.text,
                start_position=-candidate.length,
                display=shown or candidate.text,
                display_meta=candidate.note,
            )


class Terminal:
    """Asks for lines on a terminal and posts them."""

    has_keyboard = True

    def __init__(
        self, session: Session, screen: Screen, *, input: Input | None = None, output: Output | None = None
    ) -> None:
        self._session = session
        self._screen = screen
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._is_seen = output is None
        """Does the user see what is typed? A test's pipe shows nothing, so the screen echoes the lines."""
        self.guide: deque[tuple[str, str]] = deque()
        """A tour: a word about each line, and the line that Enter takes."""
        self._prompt: PromptSession[str] = PromptSession(
            history=typed_lines() if input is None else InMemoryHistory(),
            completer=_Completions(session),
            complete_while_typing=False,
            auto_suggest=AutoSuggestFromHistory(),
            lexer=LineLexer(),
            style=DynamicStyle(lambda: style_named(session.run.config.theme)),
            bottom_toolbar=self._toolbar,
            prompt_continuation="... ",
            multiline=Condition(lambda: not is_complete(self._typed_so_far())),
            input=input,
            output=output or create_output(stdout=screen.console.file),  # type: ignore[arg-type]
            color_depth=ColorDepth.DEPTH_1_BIT if screen.console.no_color else None,
        )
        self._tracebacks = Tracebacks(self._prompt.app)

    def paused(self) -> None:
        self._guard(on=True)
        self._tracebacks.watch()
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="layerstep-terminal", daemon=True)
            self._thread.start()

    def resumed(self) -> None:
        self._guard(on=False)
        self._tracebacks.leave()
        self._wanted.clear()
        app = self._prompt.app
        loop = app.loop
        if app.is_running and loop is not None:
            loop.call_soon_threadsafe(lambda: app.is_running and app.exit(exception=_Cancelled()))

    def close(self) -> None:
        """Take the prompt down and wait for it: while it is open the terminal is in raw mode."""
        self.resumed()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._is_closed = True
            self._wanted.set()
            self._thread.join(timeout=2)

    def hand_over(self) -> Any:
        return get_typeahead(self._prompt.input), list(self.guide)

    def take_over(self, handed: Any) -> None:
        keys, guide = handed
        get_typeahead(self._prompt.input)  # the other process has used or handed over these
        store_typeahead(self._prompt.input, keys)
        self.guide = deque(guide)
        self._wanted, self._thread, self._is_closed = threading.Event(), None, False
        if self._is_seen:
            self._prompt.history = self._prompt.default_buffer.history = typed_lines()

    def _guard(self, *, on: bool) -> None:
        """While the prompt is open, a signal that ends the process puts the terminal back first."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _ENDING:
            if signal.getsignal(number) == (signal.SIG_DFL if on else self._end):
                signal.signal(number, self._end if on else signal.SIG_DFL)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.close()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    def _run(self) -> None:
        try:
            while self._wanted.wait() and not self._is_closed:
                self._ask_once()
        except Exception as error:
            self._session.prompt.give_up(error)

    def _ask_once(self) -> None:
        word, offered = self.guide[0] if self.guide else ("", "")
        if word:
            self._screen.console.print(f"\n{word}", style="warn")
        try:
            line = self._prompt.prompt(
                [("class:prompt", ">>> " if self._session.prompt.interacting else PROMPT)],
                handle_sigint=False,
                placeholder=[("class:auto-suggestion", offered)],
                pre_run=self._tracebacks.prompt_opens,
            )
        except KeyboardInterrupt:
            return
        except EOFError:
            if self._is_seen:
                self._session.say(Notice(f"Ctrl-D: {self._session.prompt.at_end}"))
            ending = self._session.prompt.submit_end()
            if ending is not None:
                ending.exception()
            return
        except _Cancelled:
            return
        finally:
            self._tracebacks.prompt_closed()
        if not self._wanted.is_set():
            return
        if offered and line.strip() in ("", offered):
            line = offered  # which stands at the prompt already, as its placeholder
            self.guide.popleft()
        if self._is_seen:
            self._screen.typed = line
        with contextlib.suppress(UserError):  # the run went on by another hand as the line was sent
            self._session.prompt.submit(line).result()

    def _typed_so_far(self) -> str:
        text = self._prompt.default_buffer.text
        return f"!{text}" if self._session.prompt.interacting and text.strip() else text

    def _toolbar(self) -> StyleAndTextTuples:
        return [("class:toolbar", "  " + "   ".join(status_of(self._session)))]


def status_of(session: Session) -> list[str]:
    """Where the run stands: path, direction, forward number, mode and points."""
    pause = session.run.pause
    parts = ["not started"]
    if pause is not None and not pause.is_start:
        frame = pause.frame
        parts = [(frame.path if frame is not None else "") or pause.reason or "stopped"]
        parts += ["backward"] if pause.phase in (Phase.BACKWARD_ENTER, Phase.BACKWARD) else []
        parts += [f"forward {pause.forward}"] if pause.forward else []
        if frame is not None and frame.module is not None:
            parts.append("train" if frame.module.training else "eval")
    points = sum(point.enabled for point in session.points.shown)
    parts.append(f"{points} point{'' if points == 1 else 's'}")
    if session.installation.is_eager and session.installation.has_compiled_code:
        parts.append("compiled code runs eagerly")
    return parts
