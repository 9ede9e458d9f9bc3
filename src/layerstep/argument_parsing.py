"""Reads the arguments of a line by what the command declares; a mistake is one `BadArguments` line.

Words are separated by blanks; quotes and brackets hold a word together. Options may stand anywhere. Arguments
at the end that only some words fit (numbers, choices) take the last words, those before take the first ones,
and the wide one takes what is left.
"""

from __future__ import annotations

import ast
import difflib
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from layerstep.arguments import (
    Argument,
    Choice,
    Condition,
    Expr,
    File,
    Flag,
    Form,
    Given,
    Number,
    Option,
    Rest,
)
from layerstep.errors import BadArguments
from layerstep.forms import usage_of

__all__ = ["chosen_form", "hint_of", "parse", "pieces_of"]

_OPTION = re.compile(r"--([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
_OPERATOR = re.compile(r"\s*(?:[.(\[<>=!%*/+&|^@]|-(?!-)|(?:and|or|in|is|not|if)\b)")
"""Makes Python of the word before it: `step > 5` is no form of `until`."""
_OPEN_END = re.compile(r"[-+*/%@|&^<>=(:~]$|\b(" + "|".join(keyword.kwlist) + r")$")
"""What ends so goes on: the number behind it is a part of the expression."""
MOST_FORMS = 4
"""Of more forms a hint shows only the one that was meant."""
_QUOTED = {sign: re.compile(rf"{sign}(?:\\.|[^{sign}\\])*{sign}", re.DOTALL) for sign in "\"'"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class Piece(NamedTuple):
    """A word and where it stands in the line."""

    start: int
    end: int
    text: str


def pieces_of(text: str, *, commas: bool = False) -> list[Piece]:
    """The words of a text; with `commas`, those separate as well."""
    jumps = _jumps(text)
    found: list[Piece] = []
    start, at = -1, 0
    while at <= len(text):
        is_between = at == len(text) or text[at].isspace() or (commas and text[at] == ",")
        if is_between and start >= 0:
            found.append(Piece(start, at, text[start:at]))
            start = -1
        elif not is_between and start < 0:
            start = at
        at = jumps.get(at, at) + 1
    return found


def _jumps(text: str) -> dict[int, int]:
    """Where each quote and bracket that is closed ends; one that is not is a sign like any other."""
    ends: dict[int, int] = {}
    waiting: list[int] = []
    at = 0
    while at < len(text):
        sign = text[at]
        if sign in "\"'":
            match = _QUOTED[sign].match(text, at)
            if match is not None:
                ends[at] = at = match.end() - 1
        elif sign in _CLOSING:
            waiting.append(at)
        elif sign in ")]}" and waiting and _CLOSING[text[waiting[-1]]] == sign:
            ends[waiting.pop()] = at
        at += 1
    return ends


@dataclass(slots=True)
class _Reading:
    """One line that is read by one form."""

    form: Form
    label: str
    """The command and the word of the form, for messages."""
    text: str
    pieces: list[Piece]
    values: dict[str, Any] = field(default_factory=dict)

    def condition(self) -> None:
        """Take `if EXPR` off the end."""
        at = next((i for i, piece in enumerate(self.pieces) if piece.text == "if"), None)
        if at is None or not any(isinstance(item, Condition) for item in self.form.items):
            return
        condition = self.text[self.pieces[at].end :].strip()
        if not condition:
            raise BadArguments("an expression is missing")
        self.values[Condition.key] = condition
        self.pieces = self.pieces[:at]

    def options(self, *, until: int | None = None) -> None:
        """Take the options and their values out; with `until`, only before the raw rest begins."""
        known = {f"{item.sign}{item.name}": item for item in self.form.options}
        left: list[Piece] = []
        waiting = list(self.pieces)
        while waiting and (until is None or len(left) < until or waiting[0].text in known):
            piece = waiting.pop(0)
            match = _OPTION.fullmatch(piece.text)
            word = f"--{match[1]}" if match else piece.text
            item = known.get(word)
            if item is not None and (match is not None or word == piece.text):
                self._option(item, word, match[2] if match else None, waiting, known)
            elif match is not None:
                raise _unknown(word, known)
            else:
                left.append(piece)
        self.pieces = left + waiting

    def _option(
        self, item: Flag | Option, word: str, value: str | None, waiting: list[Piece], known: dict[str, Any]
    ) -> None:
        if isinstance(item, Flag):
            if value is not None:
                raise BadArguments(f"{word} takes no value")
            self.values[item.key] = True
            return
        if not value:
            taken = self._values_of(item, waiting, known)
            if not taken:
                raise BadArguments(f"{word} needs {item.value.metavar if not item.sign else 'a value'}")
            value = self.text[taken[0].start : taken[-1].end]
        self.values[item.key] = item.value.read(value, word)

    @staticmethod
    def _values_of(item: Option, waiting: list[Piece], known: dict[str, Any]) -> list[Piece]:
        """One word; of an expression, all up to the next option."""
        taken: list[Piece] = []
        most = None if isinstance(item.value, Expr) else 1
        while waiting and len(taken) != most and waiting[0].text.partition("=")[0] not in known:
            taken.append(waiting.pop(0))
        return taken

    def arguments(self) -> None:
        """Hand out the words that are left."""
        missing: list[Argument] = []
        skipped: list[Argument] = []
        kinds = list(self.form.arguments)
        while kinds and self._takes_last(kinds[-1], kinds[:-1]):
            kind = kinds.pop()
            skipped += [kind] if kind.key not in self.values else []
        for kind in kinds:
            if kind.is_wide:
                taken, self.pieces = self.pieces, []
                text = self._whole(taken, to_end=isinstance(kind, Rest))
            else:
                text = self.pieces.pop(0).text if self.pieces else ""
            if text:
                self.values[kind.key] = kind.read(text)
            elif not kind.can_be_left_out:
                missing.append(kind)
        if missing:
            needed = [kind.words for kind in self.form.arguments if not kind.can_be_left_out]
            raise BadArguments(f"{self.label} needs {_and(needed)}")
        if len(self.pieces) == 1 and skipped:  # it says what is wrong with the word, or takes its beginning
            self.values[skipped[0].key] = skipped[0].read(self.pieces.pop().text)
        if self.pieces:
            raise BadArguments(f"{self._whole(self.pieces)!r} is too much")

    def _takes_last(self, kind: Argument, before: list[Argument]) -> bool:
        """Does this argument, the last of those that wait, get along without the words before?"""
        is_behind = any(each.is_wide for each in before)
        if kind.is_wide and not (is_behind and isinstance(kind, File)):
            return False
        if not (kind.is_strict or is_behind):
            return False
        most = 10_000 if isinstance(kind, Choice) and kind.many else getattr(kind, "count", 1)
        count = 0
        while count < min(most, len(self.pieces)) and self._fits(kind, before, count):
            count += 1
        if isinstance(kind, Number) and count != kind.count:
            count = 0
        if count:
            taken, self.pieces = self.pieces[-count:], self.pieces[:-count]
            values = tuple(kind.read(piece.text) for piece in taken)
            self.values[kind.key] = values if most > 1 else values[0]
        return bool(count) or kind.can_be_left_out

    def _fits(self, kind: Argument, before: list[Argument], count: int) -> bool:
        piece = self.pieces[-1 - count]
        if not kind.fits(piece.text):
            return False
        if not any(isinstance(each, Expr) for each in before):
            return True
        return _OPEN_END.search(self.text[: piece.start].rstrip()) is None

    def _whole(self, pieces: Sequence[Piece], *, to_end: bool = False) -> str:
        """Some words with what is between them in the line; a blank where an option was taken out."""
        if to_end and pieces:
            return self.text[pieces[0].start :].strip()
        text, last = "", -1
        for piece in pieces:
            between = self.text[last : piece.start] if last >= 0 else ""
            text += (between if not between.strip(" \t\n,") else " ") + piece.text
            last = piece.end
        return text


def parse(name: str, forms: Sequence[Form], text: str) -> Given:
    """What a line gives to a command; a `BadArguments` with a hint if it does not fit."""
    form, word = chosen_form(name, forms, text)
    try:
        values = _read(form, f"{name} {word}".rstrip(), text, word)
    except BadArguments as error:
        raise error if error.hint else BadArguments(error.message, hint_of(name, forms, text)) from None
    every = {item.key: item.nothing for each in (*forms, form) for item in each.items}
    return Given(**(every | values), form=word, typed=text.strip())


def _read(form: Form, label: str, text: str, word: str) -> dict[str, Any]:
    begin = text.index(word) + len(word) if word else 0
    has_python = any(isinstance(each, Expr) for each in form.arguments)
    pieces = [piece for piece in pieces_of(text, commas=has_python) if piece.start >= begin]
    reading = _Reading(form, label, text, pieces)
    raw = next((at for at, each in enumerate(form.arguments) if isinstance(each, Rest)), None)
    reading.condition()
    reading.options(until=raw)
    reading.arguments()
    return reading.values


def chosen_form(name: str, forms: Sequence[Form], text: str) -> tuple[Form, str]:
    """The form that a line is of, and its word."""
    pieces = pieces_of(text)
    first = next((piece for piece in pieces if not _OPTION.fullmatch(piece.text)), None)
    unnamed = [form for form in forms if not form.names]
    named = {each: form for form in forms for each in form.names}
    if pieces and pieces[0].text in named:
        takes_python = any(isinstance(each, Expr) for form in unnamed for each in form.arguments)
        if not (takes_python and _OPERATOR.match(text[pieces[0].end :]) and _is_python(text)):
            return named[pieces[0].text], pieces[0].text
    if first is None and unnamed:
        return unnamed[0], ""
    if first is None:
        raise BadArguments(f"{name} what?", f"one of {', '.join(named)}")
    for form in unnamed:
        if form.arguments and form.arguments[0].is_strict and form.arguments[0].fits(first.text):
            return form, ""
    free = [form for form in unnamed if any(not each.is_strict for each in form.arguments)]
    if free or not named:
        return (free or unnamed)[0], ""
    raise _no_form(name, first.text, unnamed, named)


def _is_python(text: str) -> bool:
    """Is this a whole expression? `flow * 2` is one; `dead **` is a form and a pattern."""
    try:
        ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _no_form(name: str, word: str, unnamed: Sequence[Form], named: dict[str, Form]) -> BadArguments:
    metavars = [form.arguments[0].metavar for form in unnamed if form.arguments]
    known = ", ".join(named) + (f", or {metavars[0]}" if metavars else "")
    return BadArguments(f"{name} has no {word!r}", f"{_near(word, named)}there is {known}")


def _unknown(word: str, known: dict[str, Flag | Option]) -> BadArguments:
    options = [each for each, item in known.items() if item.sign]
    hint = f"{_near(word, options)}there is {', '.join(options)}" if options else ""
    return BadArguments(f"no option {word}", hint)


def _near(word: str, known: Sequence[str] | dict[str, Form]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}? " if close else ""


def hint_of(name: str, forms: Sequence[Form], text: str) -> str:
    """`usage: …`, of the form that a line is of, else of the whole command."""
    try:
        form, word = chosen_form(name, forms, text)
    except BadArguments:
        form, word = forms[0], ""
    items = " ".join(item.usage for item in form.items)
    is_alone = bool(word or items) and (word or len(forms) > MOST_FORMS)
    return f"usage: {name} {f'{word} {items}'.strip() if is_alone else usage_of(forms)}".rstrip()


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
