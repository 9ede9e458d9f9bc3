"""Views for a terminal, by rich. Without colour the same text serves pipes, files and transcripts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import singledispatch
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as RichGroup
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text as RichText

from layerstep.render.fields import FieldLines
from layerstep.render.plain import Written
from layerstep.render.plot import Drawing
from layerstep.render.spelled import spelled_out
from layerstep.render.table import TableLines
from layerstep.render.tensorline import TensorLine
from layerstep.render.theme import CODE, theme_named
from layerstep.views import (
    Fields,
    Group,
    Node,
    Notice,
    Plot,
    Source,
    Span,
    Stack,
    StackFrame,
    Table,
    TensorView,
    Text,
    Tree,
    View,
)

__all__ = ["Themed", "make_console", "to_rich", "to_text"]

_SIGNS = {"info": ("·", "dim"), "good": ("✓", "good"), "warn": ("!", "warn"), "error": ("✗", "bad")}


class _Console(Console):
    """Without rich's manners at a closed pipe: it would silence the program's stdout and exit."""

    def on_broken_pipe(self) -> None:
        raise


def make_console(
    file: IO[str], *, width: int | None = None, colour: bool | None = None, theme: str = "auto"
) -> Console:
    """The one place that decides about colour: rich honours NO_COLOR, FORCE_COLOR and TERM."""
    forced = _dumb_size(file)
    if width is not None:
        forced["width"] = width
    if colour is not None:
        forced |= {
            "color_system": "standard" if colour else None,
            "no_color": not colour,
            "force_terminal": colour,
        }
    return _Console(
        file=file,
        theme=theme_named(theme),
        highlight=False,
        emoji=False,
        markup=False,
        force_jupyter=False,  # in a notebook it would show what is only being rendered
        **forced,
    )


def _dumb_size(file: IO[str]) -> dict[str, Any]:
    """The size of a terminal without abilities: rich takes each for one of 80 columns."""
    if os.environ.get("TERM", "").lower() not in ("dumb", "unknown"):
        return {}
    try:
        columns, lines = os.get_terminal_size(file.fileno())
    except (AttributeError, OSError, ValueError):  # no terminal
        return {}
    wanted = os.environ.get("COLUMNS", "")
    columns = int(wanted) if wanted.isdecimal() else columns
    return {"width": columns, "height": lines} if columns and lines else {}


def to_text(view: View, *, width: int = 80) -> str:
    """A view as plain text."""
    import io

    console = make_console(io.StringIO(), width=width, colour=False)
    console.print(to_rich(view))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


class Themed:
    """A view for a console that does not know our styles."""

    def __init__(self, view: View) -> None:
        self.view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with console.use_theme(theme_named("auto")):
            segments = list(console.render(to_rich(self.view), options))
        yield from segments


def to_rich(view: View) -> RenderableType:
    """A view as something rich can print; what a terminal would obey is spelled out."""
    return Written(_drawn(spelled_out(view)))


@singledispatch
def _drawn(view: object) -> RenderableType:
    raise TypeError(f"no view: {type(view).__name__}")


@_drawn.register
def _(view: Text) -> RenderableType:
    return RichText.from_ansi(view.text) if view.is_printed else RichText(view.text)


@_drawn.register
def _(view: Notice) -> RenderableType:
    sign, style = _SIGNS[view.level]
    line = RichText.assemble((sign + " ", style), view.text)
    return line.append(f"; {view.hint}", "dim") if view.hint else line


@_drawn.register
def _(view: TensorView) -> RenderableType:
    return TensorLine(view)


@_drawn.register
def _(view: Fields) -> RenderableType:
    parts: list[RenderableType] = []
    if view.title:
        parts.append(_spans(view.title))
    if view.items:
        lines = FieldLines([(label, _drawn(value)) for label, value in view.items])
        parts.append(Padding(lines, (0, 0, 0, 2)) if view.title else lines)
    return RichGroup(*parts)


def _spans(spans: Iterable[Span]) -> RichText:
    line = RichText()
    for span in spans:
        if span.text:
            line.append("  " if line else "").append(span.text, span.role)
    return line


@_drawn.register
def _(view: Table) -> RenderableType:
    return TableLines(view)


@_drawn.register
def _(view: Tree) -> RenderableType:
    lines = list(_branches(view.root, "", ""))
    return RichGroup(*lines, RichText(view.note, "dim")) if view.note else RichGroup(*lines)


def _branches(node: Node, here: str, below: str) -> Iterator[_Branch]:
    """A node and what hangs below it; rich's own tree takes three times as long."""
    yield _Branch(node, here)
    for child in node.children:
        last = child is node.children[-1]
        yield from _branches(
            child, below + ("└── " if last else "├── "), below + ("    " if last else "│   ")
        )


class _Branch:
    """One line of a tree; where it is too long, the detail is left out as a whole, or the line is folded."""

    def __init__(self, node: Node, here: str) -> None:
        mark = f"  {node.mark}" if node.mark else ""
        self.line = RichText.assemble(
            (here, "dim"), (node.label, "path"), "  ", (node.kind, "type"), (mark, "warn"), overflow="fold"
        )
        self.detail = RichText(f"  {node.detail}" if node.detail else "", "dim")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fits = self.line.cell_len + self.detail.cell_len <= options.max_width
        yield self.line.copy().append_text(self.detail if fits else RichText(" …", "dim"))


@_drawn.register
def _(view: Source) -> RenderableType:
    code = Syntax("", "python", theme=CODE, background_color="default").highlight("\n".join(view.lines))
    digits = len(str(view.first + len(view.lines)))
    name = RichText.assemble((os.path.basename(view.file), "path"), "  ", (view.title, "dim"))
    lines: list[RenderableType] = [name]
    for number, text in enumerate(code.split("\n", allow_blank=True), start=view.first):
        arrow = "→" if number == view.current else " "
        head = RichText.assemble((f"{arrow} ", "warn"), (f"{number:>{digits}}  ", "dim"))
        line = head.append_text(text)
        line.no_wrap, line.overflow = True, "ellipsis"
        lines.append(line)
        if len(lines) > len(view.lines):
            break
    return RichGroup(*lines)


@_drawn.register
def _(view: Stack) -> RenderableType:
    parts: list[RenderableType] = []
    for frame in view.frames:
        parts.extend(_frame(frame))
    if view.note:
        parts.append(RichText(view.note, "dim"))
    return RichGroup(*parts)


def _frame(frame: StackFrame) -> Iterable[RenderableType]:
    head = RichText.assemble(
        ("→ " if frame.selected else "  ", "warn"),
        (f"{frame.index}  ", "dim"),
        (frame.path, "path"),
        "  ",
        (frame.kind, "type"),
        "  ",
        (frame.state, "dim"),
    )
    yield head
    if frame.inputs or frame.output:
        arrow = f" → {frame.output}" if frame.output else ""
        yield Padding(RichText(f"({frame.inputs}){arrow}"), (0, 0, 0, 7))
    if frame.location:
        yield Padding(RichText.assemble((frame.location, "dim"), "  ", (frame.code, "code")), (0, 0, 0, 7))


@_drawn.register
def _(view: Plot) -> RenderableType:
    return Drawing(view)


@_drawn.register
def _(view: Group) -> RenderableType:
    return RichGroup(*(_drawn(part) for part in view.views))
