"""Lines that are given before a run: those that cannot work are reported before it starts."""

from __future__ import annotations

import codeop
import keyword
from collections.abc import Iterable

from layerstep.errors import UnknownCommand, UserError
from layerstep.expressions.expression import UNREADABLE, rewrite
from layerstep.habits import known_elsewhere
from layerstep.line_syntax import WORD, asked_about, check_length, is_python_after
from layerstep.registry import command_names, find_command, near

__all__ = ["check_lines"]


def check_lines(lines: Iterable[str]) -> None:
    """A `UserError` for the first line that is neither a command nor Python."""
    aliases: set[str] = set()
    for line in lines:
        text = line.strip()
        word = text.split(None, 1)[0] if text else ""
        if word == "alias":
            aliases.add(text.removeprefix("alias").partition("=")[0].strip())
        elif word not in aliases:
            try:
                _check(text)
            except UserError as error:
                raise UserError(f"{line.partition(chr(10))[0][:80]!r}: {error.message}", error.hint) from None


def _check(text: str) -> None:
    check_length(text)
    if not text or text.startswith("#") or asked_about(text) is not None:
        return
    match = None if text.startswith("!") else WORD.fullmatch(text)
    if match is not None and not is_python_after(*match.groups()):
        try:
            if find_command(match[1], prefix=not keyword.iskeyword(match[1])) is not None:
                return
        except UnknownCommand:  # several commands begin so, and it may still be a name of the program
            if not _is_python(text):
                raise
    if not _is_python(text.removeprefix("!")):
        word = match[1] if match is not None else text.split()[0]
        close = near(word, command_names())
        told = UnknownCommand(f"no command {word!r}, and no Python", suggestions=close)
        raise (None if close else known_elsewhere(text)) or told


def _is_python(text: str) -> bool:
    try:
        return codeop.compile_command(rewrite(text) + "\n\n", "<line>", "exec") is not None
    except UNREADABLE:
        return False
