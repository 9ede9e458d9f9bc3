"""Where messages go: the screen, a JSON file, a transcript. All are listeners of a session."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import subprocess
import threading
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.text import Text as RichText

from layerstep.engine.messages import Message
from layerstep.engine.session import Session
from layerstep.frontends.bars import Bars
from layerstep.frontends.progress import ProgressLine
from layerstep.render.json import to_line
from layerstep.render.screen import make_console, to_rich, to_text
from layerstep.render.theme import theme_named
from layerstep.views import Text
from layerstep.visible import one_line, visible

__all__ = ["PROMPT", "JsonLines", "Screen", "write_transcript"]

PROMPT = "(layerstep) "

MOST_ECHOED = 2_000


class Screen:
    """Shows messages on a terminal or in a pipe; lines that were not typed there are echoed."""

    def __init__(self, session: Session, file: IO[str], *, console: Console | None = None) -> None:
        with contextlib.suppress(AttributeError, ValueError):
            file.reconfigure(errors="replace")  # type: ignore[attr-defined]  # a C locale has no μ
        self.console = console or make_console(file)
        self._has_colour = not self.console.no_color
        self.typed: str | None = None
        self.can_page = False
        self.only_notices = False
        """Are stops and answers for others?"""
        self._session = session
        self._bars = Bars()
        self._progress = ProgressLine(self.console)
        self._is_paused = False
        self._lock = threading.RLock()

    def __call__(self, message: Message) -> None:
        if self.only_notices and message.kind in ("stop", "answer", "resume"):
            return
        theme = self._session.run.config.theme
        self.console.no_color = theme == "plain" or not self._has_colour
        with self._lock, self.console.use_theme(theme_named(theme)):
            if message.kind == "progress":
                if isinstance(message.view, Text) and not self._bars.need_lines_below:
                    self._progress.draw(one_line(message.view.text))
                return
            self._progress.erase()
            if message.kind == "stop":
                self._is_paused = True
                self._bars.clear()
                self.console.print()
            elif not self._is_paused:
                self._bars.clear()
            if message.line and message.line != self.typed:
                self._echo(message.line, f"({message.origin}) " if message.origin else PROMPT)
            self.typed = None
            if message.kind == "resume":
                self._is_paused = False
            elif not (isinstance(message.view, Text) and not message.view.text):
                self._show(message)
            if not self._is_paused:
                self._bars.draw()

    def _echo(self, line: str, prompt: str) -> None:
        line = line if len(line) <= MOST_ECHOED else f"{line[:MOST_ECHOED]}…"
        line, prompt = visible(line), one_line(prompt)
        if line.startswith("#"):
            self.console.print(RichText(f"\n{line}", "warn"))
        else:
            self.console.print(RichText.assemble((prompt, "prompt"), line.replace("\n", "\n... ")))

    def _show(self, message: Message) -> None:
        with self.console.capture() as captured:
            self.console.print(to_rich(message.view))
        lines = [line.rstrip() for line in captured.get().splitlines()]
        most = self._session.run.config.max_lines
        if len(lines) > most:
            lines = [*lines[:most], f"… {len(lines) - most} more lines; `config max_lines N` shows more"]
        text = "\n".join(lines)
        paged = self.can_page and self._session.run.config.pager and message.kind == "answer"
        if not (paged and len(lines) >= self.console.height and _page(text, self.console.file)):
            self.console.file.write(text + "\n")
            self.console.file.flush()


PAGER = "less -RFXK '-Pspace goes on, q goes back'"
"""K: Ctrl-C leaves it. P: a colon tells a newcomer nothing."""


def _page(text: str, file: IO[str]) -> bool:
    command = shlex.split(os.environ.get("PAGER") or PAGER)
    if not command or shutil.which(command[0]) is None:
        return False
    try:
        subprocess.run(command, input=text + "\n", text=True, encoding="utf-8", stdout=file, check=False)
    except (OSError, io.UnsupportedOperation):
        return False
    return True


class JsonLines:
    """Writes every message as one JSON object a line."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        if message.kind in ("resume", "progress"):
            return
        with self._lock:
            text = to_line(message.view, kind=message.kind, line=message.line, stop=message.stop)
            self._file.write(text + "\n")
            self._file.flush()


def write_transcript(session: Session, message: Message) -> None:
    """Append a message to the file that `transcript FILE` named."""
    if session.prompt.transcript is None or message.kind == "progress":
        return
    prompt = one_line(f"({message.origin}) ") if message.origin else PROMPT
    echo = f"{prompt}{visible(message.line)}\n" if message.line else ""
    text = "" if message.kind == "resume" else to_text(message.view, width=88) + "\n"
    try:
        with Path(session.prompt.transcript).open("a", encoding="utf-8") as file:
            file.write(echo + text)
    except OSError:
        session.prompt.transcript = None  # the disk is full or gone: never a reason to stop the run
