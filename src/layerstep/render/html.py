"""Views as HTML, for notebooks: what the terminal shows, with inline styles and nothing to load."""

from __future__ import annotations

import io

from layerstep.render.screen import make_console, to_rich
from layerstep.views import View

__all__ = ["to_html"]

_FORMAT = '<pre style="font-family:ui-monospace,Menlo,Consolas,monospace;line-height:1.25">{code}</pre>'


def to_html(view: View, *, width: int = 100) -> str:
    """A view as a fragment of HTML."""
    console = make_console(io.StringIO(), width=width, colour=True)
    console.record = True
    console.print(to_rich(view))
    return console.export_html(inline_styles=True, code_format=_FORMAT)
