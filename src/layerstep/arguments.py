"""What a command takes, declared once: its usage, its parser and its completion are made of this.

    args=(Expr("X", optional=True), Option("bins", Number("N", least=1, most=1000)), Flag("log"))

is `[X] [--bins N] [--log]`, and the command is called with `.x`, `.bins` and `.log`. A command with several
ways to use it has a `Form` for each: `Form("save", Word("NAME"), Flag("add"))` is `save NAME [--add]`, and
`.form` is then "save". `argument_parsing` reads a line by such a declaration.

Wide arguments take all that the others leave: a form has one of them at most. `Rest` takes the line as it was
typed; in all others a word that begins with `--` is an option, unless it is in quotes or brackets.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

from layerstep.errors import BadArguments

__all__ = [
    "Argument",
    "Choice",
    "Completes",
    "Condition",
    "Expr",
    "File",
    "Flag",
    "Form",
    "Given",
    "Item",
    "Keyword",
    "Number",
    "Option",
    "Path",
    "Pattern",
    "Quoted",
    "Real",
    "Rest",
    "Text",
    "Where",
    "Word",
]

Completes = str | Callable[[Any], Iterable[str]]
"""What the Tab key offers: the name of a kind (`path`, `point`, …), or a function that lists words."""


class Given(SimpleNamespace):
    """What was typed, by the names of the declaration; also `.form`, and `.typed`: the words as they were."""

    form: str
    typed: str


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument that is known by its place."""

    metavar: str
    """How the usage calls it; its first word in lower case is the name of the value."""
    _: KW_ONLY
    optional: bool = False
    default: Any = None
    """The value if it is left out; it makes the argument optional. Text that is left out is empty."""
    name: str = ""
    """Of the value, if not that of the metavar."""
    what: str = ""
    """What it is in words, for messages: "a point", "a count"."""
    completes: Completes = ""
    is_wide: ClassVar[bool] = False
    is_strict: ClassVar[bool] = False
    """Only some words fit, so a word that does not fit may belong to another argument."""
    empty: ClassVar[Any] = ""
    called: ClassVar[str] = ""
    """What all of this kind are in words."""

    @property
    def key(self) -> str:
        match = re.search(r"[A-Za-z]\w*", self.metavar)
        return self.name or (match[0].lower() if match else "text")

    @property
    def can_be_left_out(self) -> bool:
        return self.optional or self.default is not None

    @property
    def nothing(self) -> Any:
        """The value of what is left out."""
        return self.default if self.default is not None else self.empty

    @property
    def usage(self) -> str:
        return f"[{self.metavar}]" if self.can_be_left_out else self.metavar

    @property
    def words(self) -> str:
        """What is missing, if it is."""
        return self.what or self.called or self.metavar

    @property
    def choices(self) -> Sequence[str]:
        """The words that fit, if they can be listed."""
        return ()

    def fits(self, text: str) -> bool:
        """Of a strict argument: may this word be it?"""
        return True

    def read(self, text: str, option: str = "") -> Any:
        """The value of a text; `option` is the word before it, `--bins`, if there is one."""
        return text


@dataclass(frozen=True, slots=True)
class Word(Argument):
    """One word without blanks."""


@dataclass(frozen=True, slots=True)
class Pattern(Word):
    """One word that names modules: a path, a glob, a /regex/ or type:Class."""

    metavar: str = "WHERE"
    completes: Completes = "where"

    def read(self, text: str, option: str = "") -> str:
        return unquoted(text)


@dataclass(frozen=True, slots=True)
class Number(Argument):
    """A whole number in a range; with `count`, so many of them, as a tuple."""

    least: int | None = 0
    most: int | None = None
    count: int = 1
    is_strict: ClassVar[bool] = True
    empty: ClassVar[Any] = None

    @property
    def words(self) -> str:
        return f"a {self.what}" if self.what else self.metavar

    def fits(self, text: str) -> bool:
        sign = "-?" if self.least is None or self.least < 0 else ""
        return re.fullmatch(sign + r"[0-9]+", text) is not None

    def read(self, text: str, option: str = "") -> int:
        low = -math.inf if self.least is None else self.least
        high = math.inf if self.most is None else self.most
        if self.fits(text) and low <= int(text) <= high:
            return int(text)
        if self.most is not None and (option or self.fits(text)):
            most = f"{self.most:,}" if self.most > 9999 else str(self.most)
            takes = f"{option or self.metavar} takes {self.least} to {most}"
            raise BadArguments(takes if option else f"{takes}, not {text}")
        if option:
            raise BadArguments(f"{option} takes a number from {self.least}, not {text!r}")
        raise BadArguments(f"{text!r} is no {self.what or 'number'}")


@dataclass(frozen=True, slots=True)
class Real(Argument):
    """A number above zero."""

    is_strict: ClassVar[bool] = True
    empty: ClassVar[Any] = None

    def fits(self, text: str) -> bool:
        try:
            return not math.isnan(float(text))
        except ValueError:
            return False

    def read(self, text: str, option: str = "") -> float:
        if self.fits(text) and float(text) > 0:
            return float(text)
        what = self.what or "number above 0"
        raise BadArguments(f"{option} is a {what}, not {text!r}" if option else f"{text!r} is no {what}")


@dataclass(frozen=True, slots=True)
class Choice(Argument):
    """One word out of some: `Choice("enter|exit")`, or with a metavar `Choice("COLUMN", of=COLUMNS)`.

    A beginning that only one of them has is enough. With `many`, any number of them, as a tuple. Words in
    `also` are understood and not offered.
    """

    of: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    many: bool = False
    is_strict: ClassVar[bool] = True

    @property
    def words(self) -> str:
        return self.metavar

    @property
    def choices(self) -> Sequence[str]:
        return self.of or self.metavar.split("|")

    @property
    def nothing(self) -> Any:
        return self.default if self.default is not None else () if self.many else ""

    def fits(self, text: str) -> bool:
        return text in self.choices or text in self.also

    def read(self, text: str, option: str = "") -> str:
        begun = [each for each in self.choices if each.startswith(text)]
        if self.fits(text) or len(begun) == 1:
            return text if self.fits(text) else begun[0]
        known = ", ".join(self.choices)
        if option:
            raise BadArguments(f"{option} {text!r} is unknown", f"there is {known}")
        raise BadArguments(f"no {self.what or self.key} {text!r}", f"there is {known}")


@dataclass(frozen=True, slots=True)
class Quoted(Argument):
    """A text in quotes; the value is what is in them."""

    is_strict: ClassVar[bool] = True

    def fits(self, text: str) -> bool:
        return re.fullmatch(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""", text, re.DOTALL) is not None

    def read(self, text: str, option: str = "") -> str:
        if not self.fits(text):
            raise BadArguments(f"{text!r} is no text in quotes")
        try:
            return str(ast.literal_eval(text))
        except (SyntaxError, ValueError) as error:
            raise BadArguments(f"{text} cannot be read: {getattr(error, 'msg', error)}") from None


@dataclass(frozen=True, slots=True)
class Text(Argument):
    """All that the others leave, as it was typed."""

    is_wide: ClassVar[bool] = True
    called: ClassVar[str] = "an argument"


@dataclass(frozen=True, slots=True)
class Expr(Text):
    """Python, one expression or several; the command evaluates it."""

    completes: Completes = "expression"


@dataclass(frozen=True, slots=True)
class Rest(Text):
    """The rest of the line, raw: options and quotes in it are part of it."""


@dataclass(frozen=True, slots=True)
class Path(Text):
    """A module, by its path."""

    metavar: str = "PATH"
    completes: Completes = "path"

    def read(self, text: str, option: str = "") -> str:
        text = unquoted(text)
        words = text.split()
        if len(words) > 1 and not re.search(r"\.\w+:\w+$", text):  # a file may have blanks in its name
            raise BadArguments(f"{' '.join(words[1:])!r} is too much")
        return text


@dataclass(frozen=True, slots=True)
class Where(Path):
    """Modules: a path, a glob, a /regex/ or type:Class; or a line of the program."""

    metavar: str = "WHERE"
    completes: Completes = "where"
    called: ClassVar[str] = "WHERE"


@dataclass(frozen=True, slots=True)
class File(Text):
    """A file; quotes around its name are taken off."""

    metavar: str = "FILE"
    completes: Completes = "file"
    called: ClassVar[str] = "a file"

    def read(self, text: str, option: str = "") -> str:
        return unquoted(text)


def unquoted(text: str) -> str:
    """Without the quotes around it, which a shell would ask for and take off."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


@dataclass(frozen=True, slots=True)
class Flag:
    """`--name`; the value is whether it is there."""

    name: str
    help: str = ""
    """What it does, if the command's help text does not say it."""

    sign: ClassVar[str] = "--"

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def nothing(self) -> Any:
        return False

    @property
    def usage(self) -> str:
        return f"[--{self.name}]"


@dataclass(frozen=True, slots=True)
class Option:
    """`--name VALUE` or `--name=VALUE`."""

    name: str
    value: Argument
    help: str = ""
    """What it does, if the command's help text does not say it."""

    sign: ClassVar[str] = "--"

    @property
    def key(self) -> str:
        return self.value.name or self.name.replace("-", "_")

    @property
    def nothing(self) -> Any:
        return self.value.nothing

    @property
    def usage(self) -> str:
        return f"[{self.sign}{self.name} {self.value.metavar}]"


@dataclass(frozen=True, slots=True)
class Keyword(Option):
    """`name VALUE`, as in `every 10` and `in blocks.*`."""

    sign: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """`if EXPR` at the end: all that follows the word is Python. The value is its text."""

    key: ClassVar[str] = "condition"
    nothing: ClassVar[str] = ""
    usage: ClassVar[str] = "[if EXPR]"


Item = Argument | Flag | Option | Condition


@dataclass(frozen=True, slots=True, init=False)
class Form:
    """One way to use a command: the word that it begins with, or several (`nan|inf`), and what it takes.

    A form without a word is the one that is meant if none of the words is there.
    """

    names: tuple[str, ...]
    items: tuple[Item, ...]

    def __init__(self, words: str, *items: Item) -> None:
        object.__setattr__(self, "names", tuple(filter(None, words.split("|"))))
        object.__setattr__(self, "items", items)
        wide = [each for each in self.arguments if each.is_wide]
        if len(wide) > 1 and not (len(wide) == 2 and isinstance(wide[1], File)):  # the last word is a file
            raise ValueError(f"{self.usage}: only one argument can take what is left")

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return tuple(item for item in self.items if isinstance(item, Argument))

    @property
    def options(self) -> tuple[Flag | Option, ...]:
        return tuple(item for item in self.items if isinstance(item, Flag | Option))

    @property
    def usage(self) -> str:
        return " ".join(["|".join(self.names), *(item.usage for item in self.items)]).strip()
