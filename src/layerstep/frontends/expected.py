"""What a command's declaration expects at the end of a line; knows neither the session nor a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from layerstep.argument_parsing import pieces_of
from layerstep.arguments import (
    Argument,
    Choice,
    Completes,
    Condition,
    File,
    Flag,
    Form,
    Option,
    Path,
    Where,
)

__all__ = ["Expected", "expected"]


@dataclass(slots=True)
class Expected:
    """What may come next, in the order in which it is offered."""

    last: str
    """The word that is being typed; empty after a blank."""
    forms: list[str] = field(default_factory=list)
    kinds: list[Completes] = field(default_factory=list)
    """What only the session can list: paths, points, files, …"""
    words: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)


def expected(forms: Sequence[Form], text: str) -> Expected:
    """What may come at the end of a text: forms, options, choices, and kinds that the session lists."""
    words = [piece.text for piece in pieces_of(text)]
    is_begun = bool(words) and not text[-1:].isspace()
    found = Expected(words.pop() if is_begun else "")
    named = {name: form for form in forms for name in form.names}
    if words and words[0] in named:
        chosen = [named[words.pop(0)]]
    else:
        chosen = [form for form in forms if not form.names]
        found.forms = [] if words else list(named)
    for form in chosen:
        _of_form(form, words, found)
    found.kinds = list(dict.fromkeys(found.kinds))
    return found


def _of_form(form: Form, words: list[str], found: Expected) -> None:
    known = {f"{item.sign}{item.name}": item for item in form.options}
    has_condition = any(isinstance(item, Condition) for item in form.items)
    if has_condition and "if" in words:
        found.kinds.append("expression")
        return
    before = known.get(words[-1]) if words else None
    if isinstance(before, Option):
        _of_value(before.value, found)
        return
    name, sign, _ = found.last.partition("=")
    asked = known.get(name) if sign else None
    if isinstance(asked, Option):
        found.options += [f"{name}={choice}" for choice in asked.value.choices]
        return
    unused = [word for word in known if word not in words]
    found.options += [word for word in unused if word.startswith("--")]
    place = _plain(words, known)
    for argument in _fitting(form.arguments, place):
        _of_value(argument, found)
    if place or form.names:
        found.words += [word for word in unused if not word.startswith("--")]
        found.words += ["if"] if has_condition else []


def _of_value(argument: Argument, found: Expected) -> None:
    found.words += [word for word in argument.choices if word not in found.words]
    found.kinds += [argument.completes] if argument.completes else []


def _plain(words: list[str], known: dict[str, Flag | Option]) -> int:
    """How many words are neither options nor their values."""
    count, is_value = 0, False
    for word in words:
        item = known.get(word.partition("=")[0])
        count += item is None and not is_value
        is_value = isinstance(item, Option) and "=" not in word
    return count


def _fitting(arguments: Sequence[Argument], place: int) -> list[Argument]:
    """The arguments that the next word may be of, after so many."""
    fitting: list[Argument] = []
    least, goes_on = 0, False
    for number, argument in enumerate(arguments):
        is_one = isinstance(argument, Where | Path | File) or not argument.is_wide
        goes_on = goes_on or not is_one or (isinstance(argument, Choice) and argument.many)
        if least <= place and (goes_on or place <= number):
            fitting.append(argument)
        least += not argument.can_be_left_out
    return fitting
