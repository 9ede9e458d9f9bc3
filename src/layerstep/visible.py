"""Characters that a terminal obeys or hides, shown as text: `\\x1b` for ESC.

Module names, messages, docstrings, file names and values come from other people's code and files. An escape
sequence in them could hide text, retitle the window or rewrite the screen. All text of ours passes here.
"""

from __future__ import annotations

import re

__all__ = ["escaped_json", "one_line", "visible"]

MOST_CHARACTERS = 240
"""No name is shown longer than this."""

_ORDERS = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters of both sets, tab and newline aside
    r"\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # hidden, or turning text
    r"\ud800-\udfff"  # half a character: it cannot be written
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_IN_TEXT = re.compile(f"[{_ORDERS}]")
_IN_LINE = re.compile(f"[{_ORDERS}\\t\\n]")
_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def visible(text: str) -> str:
    """The text with every such character spelled out; lines and tabs stay."""
    return text if text.isascii() and text.isprintable() else _IN_TEXT.sub(_spelled, text)


def one_line(text: str) -> str:
    """A name: it stays on its line, and its middle gives way if it is very long."""
    if len(text) > MOST_CHARACTERS:
        half = MOST_CHARACTERS // 2
        text = f"{text[:half]}…{text[-half:]}"
    return text if text.isascii() and text.isprintable() else _IN_LINE.sub(_spelled, text)


def escaped_json(text: str) -> str:
    """The same JSON with those characters as `\\uXXXX`: a parser reads the same."""
    return _IN_TEXT.sub(_as_json, text)


def _spelled(match: re.Match[str]) -> str:
    sign = match[0]
    code = ord(sign)
    if sign in _NAMED:
        return _NAMED[sign]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _as_json(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
