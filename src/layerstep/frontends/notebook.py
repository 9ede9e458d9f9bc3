"""A notebook: the answers of one cell are one output, as HTML and as text; a view as a result is one line."""

from __future__ import annotations

import io
import sys
from collections import deque
from typing import Any, get_args

from layerstep.engine.messages import Message
from layerstep.engine.session import Session
from layerstep.frontends.output import PROMPT, Screen
from layerstep.render.html import to_html
from layerstep.render.screen import make_console, to_text
from layerstep.views import Text, View

__all__ = ["Answers", "NotebookScreen", "notebook_shell"]

WIDTH = 100
MOST_ANSWERS = 200
"""In one cell; of more, the last ones are shown."""


def notebook_shell() -> Any:
    """The IPython shell of a notebook's kernel; None anywhere else."""
    if "ipykernel" not in sys.modules:
        return None
    from IPython import get_ipython

    shell = get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


class Answers:
    """What was said in one cell."""

    def __init__(self) -> None:
        self.left_out = 0
        self._parts: deque[tuple[str, str]] = deque()

    def add(self, view: View, *, most: int) -> None:
        lines = to_text(view, width=WIDTH).splitlines()
        if len(lines) > most:
            view = Text("\n".join([*lines[:most], f"… {len(lines) - most} more lines"]))
        self._parts.append((to_html(view, width=WIDTH), to_text(view, width=WIDTH)))
        if len(self._parts) > MOST_ANSWERS:
            self._parts.popleft()
            self.left_out += 1

    def _first(self) -> str:
        return f"… {self.left_out:,} earlier answers left out" if self.left_out else ""

    def __repr__(self) -> str:
        return "\n".join(filter(None, (self._first(), *(text for _, text in self._parts))))

    def _repr_html_(self) -> str:
        return "<div>" + self._first() + "".join(page for page, _ in self._parts) + "</div>"


class NotebookScreen(Screen):
    """Shows messages below the cell that runs."""

    def __init__(self, session: Session, shell: Any) -> None:
        super().__init__(session, sys.stderr, console=make_console(io.StringIO(), width=WIDTH, colour=False))
        self._shell = shell
        self._cell: int | None = None
        self._answers = Answers()
        self._handle: Any = None
        _shorten_results(shell)

    def __call__(self, message: Message) -> None:
        if message.kind == "progress":
            return
        with self._lock:
            if self._cell != self._shell.execution_count:
                self._cell, self._answers, self._handle = self._shell.execution_count, Answers(), None
            most = self._session.run.config.max_lines
            if message.line and message.line != self.typed:
                prompt = f"({message.origin}) " if message.origin else PROMPT
                self._answers.add(Text(f"{prompt}{message.line}"), most=most)
            self.typed = None
            if message.kind != "resume":
                self._answers.add(message.view, most=most)
            self._draw()

    def _draw(self) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(self._answers, display_id=True)
        else:
            self._handle.update(self._answers)


def _shorten_results(shell: Any) -> None:
    """The last value of a cell: the view itself stands above it already."""
    formatter = shell.display_formatter.formatters["text/plain"]
    for kind in get_args(View):
        formatter.for_type(kind, lambda view, printer, _cycle: printer.text(_short(view)))


def _short(view: View) -> str:
    lines = to_text(view, width=60).splitlines() or [""]
    return f"<{type(view).__name__}: {lines[0]}{' …' if len(lines) > 1 else ''}>"
