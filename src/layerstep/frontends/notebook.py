"""A notebook: the answers of one cell are one output, as HTML and as text; a view as a result is one line."""

from __future__ import annotations

import io
import sys
from collections import deque
from typing import Any, get_args

from layerstep.engine.messages import Message
from layerstep.engine.session import Session
from layerstep.frontends.output import PROMPT, Screen
from layerstep.render.interactive_html import STYLE, to_interactive_html
from layerstep.render.screen import make_console, to_text
from layerstep.views import Table, Text, Tree, View

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
            lines = [*lines[:most], f"… {len(lines) - most} more lines"]
            view = view if _is_short_as_html(view) else Text("\n".join(lines))
        self._parts.append((to_interactive_html(view, width=WIDTH, most=most), "\n".join(lines)))
        if len(self._parts) > MOST_ANSWERS:
            self._parts.popleft()
            self.left_out += 1

    def _first(self) -> str:
        return f"… {self.left_out:,} earlier answers left out" if self.left_out else ""

    def __repr__(self) -> str:
        return "\n".join(filter(None, (self._first(), *(text for _, text in self._parts))))

    def _repr_html_(self) -> str:
        return _page(self._first() + "".join(page for page, _ in self._parts))


def _page(inner: str) -> str:
    return f'{STYLE}<div class="layerstep">{inner}</div>'


def _is_short_as_html(view: View) -> bool:
    """Is it bounded there by itself? A tree folds, and a table leaves rows out."""
    return isinstance(view, Tree | Table)


class NotebookScreen(Screen):
    """Shows messages below the cell that runs."""

    def __init__(self, session: Session, shell: Any) -> None:
        super().__init__(session, sys.stderr, console=make_console(io.StringIO(), width=WIDTH, colour=False))
        self._shell = shell
        self._cell: int | None = None
        self._answers = Answers()
        self._handle: Any = None
        _show_views(shell)

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
                _SHOWN.note(self._cell, message.view)
            self._draw()

    def _draw(self) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(self._answers, display_id=True)
        else:
            self._handle.update(self._answers)


class _Shown:
    """The views that stand below the cell that runs, of all consoles."""

    def __init__(self) -> None:
        self._cell: int | None = None
        self._views: deque[View] = deque(maxlen=MOST_ANSWERS)

    def note(self, cell: int | None, view: View) -> None:
        if cell != self._cell:
            self._cell = cell
            self._views.clear()
        self._views.append(view)

    def has(self, cell: int, view: View) -> bool:
        return cell == self._cell and any(each is view for each in self._views)


_SHOWN = _Shown()


def _show_views(shell: Any) -> None:
    """Let a view that is the last value of a cell show itself; one that stands above it is one line."""

    def is_shown(view: View) -> bool:
        return _SHOWN.has(shell.execution_count, view)

    formatters = shell.display_formatter.formatters
    for kind in get_args(View):
        formatters["text/plain"].for_type(
            kind, lambda view, printer, _: printer.text(_short(view) if is_shown(view) else to_text(view))
        )
        formatters["text/html"].for_type(
            kind, lambda view: None if is_shown(view) else _page(to_interactive_html(view, width=WIDTH))
        )


def _short(view: View) -> str:
    lines = to_text(view, width=60).splitlines() or [""]
    return f"<{type(view).__name__}: {lines[0]}{' …' if len(lines) > 1 else ''}>"
