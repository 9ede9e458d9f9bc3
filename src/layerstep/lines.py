"""The shape of a line: is it a command, is it Python, does it go on?"""

from __future__ import annotations

import codeop
import re

from layerstep.engine.expression import rewrite
from layerstep.errors import UserError
from layerstep.registry import find_command

__all__ = ["WORD", "is_complete", "is_python_after", "joined"]

WORD = re.compile(r"\s*([A-Za-z][\w-]*\??)(.*)", re.DOTALL)
"""The first word of a line, which may be a command, and the rest."""

_PYTHON_AFTER = re.compile(r"\s*(=(?!=)|[-+*/|&^%@]=|:=|,)|\.\w|\[")


def is_python_after(word: str, rest: str) -> bool:
    """Does what follows a word make the line Python? `step = 3`, `list(x)`, `next.weight`."""
    return bool(_PYTHON_AFTER.match(rest)) or (rest.startswith("(") and word != "print")


def is_complete(text: str) -> bool:
    """May this be handed in, or does it go on in the next line?"""
    stripped = text.strip()
    if not stripped:
        return True
    match = WORD.fullmatch(stripped)
    command = None
    if match is not None and not is_python_after(match[1], match[2]):
        try:
            command = find_command(match[1])
        except UserError:
            return True
    if command is not None:
        if not command.block:
            return True
        lines = stripped.splitlines()
        one_line = len(lines) == 1 and len(stripped.split()) > 2
        return one_line or lines[-1].strip() == command.block
    try:
        return (
            codeop.compile_command(rewrite(stripped.removeprefix("!")) + _closing(text), "<prompt>", "single")
            is not None
        )
    except (SyntaxError, ValueError, OverflowError):
        return True


def _closing(text: str) -> str:
    """A block of several lines ends with a blank one, as in Python's own prompt."""
    _, newline, last = text.rpartition("\n")
    return "" if newline and last.strip() else "\n"


def joined(text: str) -> list[str]:
    """The commands of a text: comments dropped, `commands … end` and Python blocks in one piece."""
    found: list[str] = []
    block = ""
    for line in text.splitlines():
        if not block and (not line.strip() or line.lstrip().startswith("#")):
            continue
        block = f"{block}\n{line}" if block else line
        if is_complete(block):
            found.append(block)
            block = ""
    if block:
        found.append(block)
    return found
