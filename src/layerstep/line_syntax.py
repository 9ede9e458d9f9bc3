"""The shape of a line: is it a command, is it Python, does it go on, what are its arguments?"""

from __future__ import annotations

import ast
import codeop
import os
import re
from pathlib import Path

from layerstep.errors import BadArguments, UserError
from layerstep.expressions.expression import UNREADABLE, rewrite
from layerstep.registry import find_command

__all__ = [
    "MOST_WORDS",
    "WORD",
    "asked_about",
    "check_length",
    "expressions",
    "is_complete",
    "is_expression",
    "is_python_after",
    "joined",
    "read_commands",
    "without_comment",
]

MOST_CHARACTERS, MOST_IN_BLOCK, MOST_WORDS = 10_000, 200_000, 400
"""Of a line, of a block of lines, and of the expressions in one: reading them takes more than linear time."""
MOST_IN_FILE = 1 << 20

WORD = re.compile(r"\s*([A-Za-z][\w-]*\??)(.*)", re.DOTALL)
"""The first word of a line, which may be a command, and the rest."""

_PYTHON_AFTER = re.compile(r"\s*(=(?!=)|[-+*/|&^%@]=|:=|,)|\.\w|\[")


def is_python_after(word: str, rest: str) -> bool:
    """Does what follows a word make the line Python? `step = 3`, `list(x)`, `next.weight`."""
    return bool(_PYTHON_AFTER.match(rest)) or (rest.startswith("(") and word != "print")


def check_length(text: str) -> None:
    """A line that is too long to be read is a `BadArguments`; so is one with a NUL."""
    longest = max(map(len, text.split("\n")))
    if longest > MOST_CHARACTERS or len(text) > MOST_IN_BLOCK:
        most = f"{MOST_CHARACTERS:,} in a line, {MOST_IN_BLOCK:,} in a block"
        raise BadArguments(f"{max(longest, len(text)):,} characters are too many", most)
    if "\0" in text:
        raise BadArguments("a line cannot hold the character \\x00")


def asked_about(text: str) -> str | None:
    """What a line with a question mark asks about: `? break`, `break?`, `out.shape?`; None for others."""
    if text.startswith("?"):
        return text.strip("? \t")
    match = re.fullmatch(r"([\w.$@-]+)\s*\?{1,2}", text)
    if match is None or find_command(text, prefix=False) is not None:
        return None
    return match[1]


def without_comment(text: str) -> str:
    """The arguments of a command without `# …` at the end of a line; a # in quotes or in a word stays."""
    return "\n".join(map(_without_comment, text.split("\n"))) if "#" in text else text


def _without_comment(line: str) -> str:
    quote = before = ""
    for at, sign in enumerate(line):
        if quote:
            quote = "" if sign == quote and before != "\\" else quote
        elif sign in "\"'":
            quote = sign
        elif sign == "#" and (not before or before.isspace()):
            return line[:at].rstrip()
        before = sign
    return line


def is_complete(text: str) -> bool:
    """May this be handed in, or does it go on in the next line?"""
    stripped = text.strip()
    if not stripped or len(text) > MOST_IN_BLOCK or asked_about(stripped) is not None:
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
        lines = without_comment(stripped).splitlines()
        one_line = len(lines) == 1 and len(lines[0].split()) > 2
        return one_line or lines[-1].strip() == command.block
    try:
        return (
            codeop.compile_command(rewrite(stripped.removeprefix("!")) + _closing(text), "<prompt>", "single")
            is not None
        )
    except UNREADABLE:
        return True


def _closing(text: str) -> str:
    """A block of several lines ends with a blank one, as in Python's own prompt."""
    _, newline, last = text.rpartition("\n")
    return "" if newline and last.strip() else "\n"


def read_commands(name: str) -> str:
    """The text of a file of commands; anything else is a `UserError`."""
    path = Path(os.path.expanduser(name))
    if path.suffix in (".py", ".ipynb"):
        hint = f"`layerstep run {path.name}` runs it under the debugger" if path.suffix == ".py" else ""
        raise UserError(f"{name} is Python, not a file of commands", hint)
    try:
        if path.stat().st_size > MOST_IN_FILE:
            raise UserError(f"cannot read {name}", f"it is larger than {MOST_IN_FILE:,} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {name}", error.strerror or "") from None
    except UnicodeDecodeError:
        raise UserError(f"cannot read {name}", "it is no text") from None


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


def is_expression(text: str) -> bool:
    """Is this one Python expression, paths and `$n` included?"""
    try:
        compile(rewrite(text), "<expression>", "eval")
    except UNREADABLE:
        return False
    return bool(text.strip())


def expressions(text: str) -> list[str]:
    """The expressions of a line, separated by blanks or commas: each is the longest that can be read.

    What cannot be read is returned as the words that it has, for a message or another reading.
    """
    words = re.split(r"(\s+|,)", text.strip())
    if len(words) > MOST_WORDS:
        raise BadArguments(f"{len(words) // 2 + 1:,} words are too many")
    found: list[str] = []
    while words:
        ends = range(len(words), 0, -1)
        end = next((end for end in ends if _is_one("".join(words[:end]))), 1)
        found.append("".join(words[:end]).strip())
        words = words[end:]
        while words and not words[0].strip(", \t"):
            words.pop(0)
    return [piece for piece in found if piece]


def _is_one(piece: str) -> bool:
    """`out, inp` are two arguments, `(out, inp)` is one."""
    if not is_expression(piece):
        return False
    node = ast.parse(rewrite(piece.strip()), mode="eval").body  # it compiles, so it parses
    return not isinstance(node, ast.Tuple) or piece.lstrip().startswith("(")
