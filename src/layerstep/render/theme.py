"""Colours by theme. All are of the terminal's own palette, so that they show on its background."""

from __future__ import annotations

import os

from pygments.token import Comment, Error, Keyword, Name, Number, Operator, String, Token
from rich.style import Style
from rich.syntax import ANSISyntaxTheme
from rich.theme import Theme

__all__ = ["CODE", "PROMPT_STYLES", "prompt_styles", "theme_named"]

_ROLES = {
    "plain": "",
    "path": "bold cyan",
    "type": "magenta",
    "shape": "bold",
    "dim": "dim",
    "code": "green",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "key": "bold",
    "prompt": "bold blue",
}
_ON_LIGHT = {"path": "bold blue", "warn": "bold magenta", "dim": ""}
"""Yellow, cyan and faint text are hard to read on white in most palettes."""

_THEMES = {
    "dark": Theme(_ROLES),
    "light": Theme({**_ROLES, **_ON_LIGHT}),
    "plain": Theme(dict.fromkeys(_ROLES, "")),
}

CODE = ANSISyntaxTheme(
    {
        Token: Style(),
        Comment: Style(italic=True),
        Keyword: Style(color="blue", bold=True),
        Keyword.Constant: Style(color="magenta"),
        Operator.Word: Style(color="blue", bold=True),
        Name.Builtin: Style(color="magenta"),
        Name.Decorator: Style(color="magenta"),
        Name.Function: Style(bold=True),
        Name.Class: Style(bold=True),
        String: Style(color="green"),
        Number: Style(color="red"),
        Error: Style(underline=True),
    }
)
"""Source code; its plain text has the terminal's own colour."""

PROMPT_STYLES = {
    "prompt": "bold ansiblue",
    "command": "bold",
    "bottom-toolbar": "noreverse",
    "toolbar": "noreverse",
    "auto-suggestion": "ansibrightblack",
    "pygments.keyword": "ansiblue",
    "pygments.operator.word": "ansiblue",
    "pygments.literal.string": "ansigreen",
    "pygments.literal.number": "ansired",
    "pygments.name.builtin": "ansimagenta",
    "pygments.comment": "italic",
}
"""The line that is typed, for prompt_toolkit."""


def theme_named(setting: str) -> Theme:
    """The theme of a setting: `auto` asks `COLORFGBG`, which some terminals set, for the background."""
    name = setting if setting in _THEMES else "light" if _is_light() else "dark"
    return _THEMES[name]


def prompt_styles(setting: str) -> dict[str, str]:
    """The same for the line that is typed."""
    if setting == "plain":
        return {"bottom-toolbar": "noreverse", "toolbar": "noreverse"}
    return PROMPT_STYLES


def _is_light() -> bool:
    """`15;0`, `0;default;15`: the last is the background, of the sixteen colours 7 and 15 are light."""
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
