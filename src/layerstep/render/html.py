"""Views as HTML: what the terminal shows, with inline styles and nothing to load."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator

from rich.color import Color
from rich.style import Style

from layerstep.render.screen import make_console, to_rich
from layerstep.views import View

__all__ = ["to_html", "to_page"]

_PRE = '<pre style="font-family:ui-monospace,Menlo,Consolas,monospace;line-height:1.25">{}</pre>'
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="layerstep">
<title>{title}</title>
</head>
<body>
{body}
</body>
</html>
"""
_COLOURS = {
    "red": "#d1433b",
    "green": "#2e9d53",
    "yellow": "#b07d00",
    "blue": "#3b7dd8",
    "magenta": "#b455b4",
    "cyan": "#1a8ca5",
}
"""Legible on white and on black: a page and a notebook may be either."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def to_html(view: View, *, width: int = 100) -> str:
    """A view as a fragment of HTML."""
    return _PRE.format("\n".join(_lines(view, width)))


def to_page(view: View, *, title: str, width: int = 100) -> str:
    """A view as a whole page, in one file, readable on a light and on a dark screen."""
    return _PAGE.format(title=html.escape(title), body=to_html(view, width=width))


def _lines(view: View, width: int) -> Iterator[str]:
    console = make_console(io.StringIO(), width=width, colour=True, theme="dark")
    for line in console.render_lines(to_rich(view), console.options, pad=False):
        texts = [(segment.text, segment.style) for segment in line if not segment.control]
        yield "".join(_span(text, style) for text, style in texts).rstrip()


def _span(text: str, style: Style | None) -> str:
    escaped = html.escape(_CONTROL.sub("�", text))
    rules = ";".join(_rules(style)) if style is not None else ""
    return f'<span style="{rules}">{escaped}</span>' if rules and text.strip() else escaped


def _rules(style: Style) -> Iterator[str]:
    for is_set, rule in (
        (style.bold, "font-weight:600"),
        (style.dim, "opacity:.7"),
        (style.italic, "font-style:italic"),
        (style.underline, "text-decoration:underline"),
    ):
        if is_set:
            yield rule
    for name, colour in (("color", style.color), ("background", style.bgcolor)):
        if colour is not None and not colour.is_default:
            yield f"{name}:{_hex(colour)}"


def _hex(colour: Color) -> str:
    return _COLOURS.get(colour.name) or colour.get_truecolor().hex
