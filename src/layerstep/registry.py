"""Commands, rules, exports and sinks register themselves; nothing keeps a list of them.

`@command` on a function in a file of `layerstep.commands` is all it takes, `@export` in
one of `layerstep.exports`. The packages are walked once, then the entry points of the
same names are loaded, so that other people's distributions add to the same table.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, TypeVar

from layerstep.argument_parsing import hint_of, parse
from layerstep.arguments import Form, Given
from layerstep.documentation import documentation
from layerstep.errors import MissingExtra, UnknownCommand, first_line
from layerstep.files import replacing
from layerstep.forms import Declared, forms_of, usage_of
from layerstep.imports import installed_entry_points, our_imports

__all__ = [
    "GROUPS",
    "Command",
    "Export",
    "RuleEntry",
    "SinkEntry",
    "all_commands",
    "all_exports",
    "all_rules",
    "all_sinks",
    "command",
    "export",
    "find_command",
    "find_export",
    "find_rule",
    "leave_out_rule",
    "plugin_of",
    "rule",
    "sink",
    "untold_troubles",
]

GROUPS = ("run", "stop", "look", "change", "train", "cost", "keep", "self")
"""The order of `help` and of the reference."""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Command:
    """A command: what it is called, what it takes, and the function that answers."""

    name: str
    function: Callable[[Any, Given], Any]
    """(session, what was typed) -> a view, or a `Resume` that lets the run go on."""
    group: str
    """Which of `GROUPS` it is listed in. Ctrl-C cancels a command, except one of the group `run`."""
    forms: tuple[Form, ...]
    """What it takes, in each of the ways to use it."""
    _: KW_ONLY
    aliases: tuple[str, ...] = ()
    """Other names; they are found only if they are typed whole."""
    examples: tuple[str, ...] = ()
    """Lines that `help` shows and the tests type."""
    repeats: bool = False
    """An empty line runs it once more."""
    needs_pause: bool = False
    """It is refused while nothing has stopped, so the function finds a pause with a stack."""
    whole_word: bool = False
    """It is named only by its whole name, so that a prefix of an older command stays unique."""
    block: str = ""
    """It has a form over several lines, which this word ends."""
    at_once: bool = False
    """It reads no tensor, so another thread may answer it while the run goes on."""
    only_looks: bool = False
    """It evaluates nothing that is typed, and changes nothing: a client that may only look may use it."""

    @property
    def usage(self) -> str:
        """What may follow the name, made of the declaration."""
        return usage_of(self.forms)

    def parse(self, text: str) -> Given:
        """What a line gives to the function; a `BadArguments` with a hint if it does not fit."""
        return parse(self.name, self.forms, text)

    def hint(self, text: str) -> str:
        """The usage that fits a line, for a mistake that the function finds in it."""
        return hint_of(self.name, self.forms, text)

    @property
    def summary(self) -> str:
        return self.help.partition("\n")[0]

    @property
    def help(self) -> str:
        """The docstring of the function, unindented."""
        return documentation(self.function)


@dataclass(frozen=True, slots=True)
class Export:
    """A kind of file: its suffix, and the function that writes a view to a path.

    The function may return a few words about what it has written; the user sees them.
    """

    suffix: str
    function: Callable[[Any, Path], str | None]
    extra: str = ""
    """The optional dependency that it needs."""
    of_session: bool = False
    """It writes what the session knows, not the view that was shown last."""

    def write(self, view: Any, path: Path) -> str:
        """Write the file, whole or not at all; what there is to say about it."""
        try:
            with replacing(path) as new:
                return self.function(view, new) or ""
        except ModuleNotFoundError:
            if not self.extra:
                raise
            raise MissingExtra(self.extra, plugin_of(self) or "layerstep") from None


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """A rule of the doctor: its names, how bad its finding is, and the class that looks for it."""

    code: str
    name: str
    kind: Any
    severity: str
    confidence: str
    cost: str
    """What it needs: `always` (the loss, the calls), `look` (a step that is looked at), `end`."""

    @property
    def summary(self) -> str:
        return self.help.partition("\n")[0]

    @property
    def help(self) -> str:
        """The docstring of the class, unindented: what, why, how to fix."""
        return documentation(self.kind)


@dataclass(frozen=True, slots=True)
class SinkEntry:
    """A tracker that records can be handed to: its name, and the class that does it."""

    name: str
    kind: Callable[[str], Any]
    takes: str = ""
    """What its argument is, `DIR`; empty if it takes none."""
    extra: str = ""

    def make(self, where: str) -> Any:
        """The sink for a place; a `MissingExtra` if a package is missing."""
        try:
            return self.kind(where)
        except ModuleNotFoundError:
            if not self.extra:
                raise
            raise MissingExtra(self.extra) from None


Entry = Command | RuleEntry | Export | SinkEntry

COSTS = ("always", "look", "end")
SEVERITIES = ("info", "warning", "error", "critical")
CONFIDENCES = ("exact", "statistical")

_commands: dict[str, Command] = {}
_rules: dict[str, RuleEntry] = {}
_exports: dict[str, Export] = {}
_sinks: dict[str, SinkEntry] = {}
_loaded: set[str] = set()
_plugins: dict[str, str] = {}
_troubles: list[str] = []


def command(
    name: str, *aliases: str, group: str, args: Declared, examples: tuple[str, ...] = (), **options: Any
) -> Callable[[F], F]:
    """Register a function `(session, given) -> View | Resume` as the command `name`.

    `args` declares what it takes: an argument of `layerstep.arguments`, or several; `()` for nothing. `given`
    has their values as attributes. A function that reads its line itself declares `Rest("TEXT")`.
    """

    def register(function: F) -> F:
        new = Command(name, function, group, forms_of(args), aliases=aliases, examples=examples, **options)
        if group not in GROUPS:
            raise ValueError(f"{name}: no command group {group!r}; there are {', '.join(GROUPS)}")
        for word in (name, *aliases):
            if word in _commands and _commands[word].function.__module__ != function.__module__:
                raise ValueError(f"two commands want the name {word!r}")
            _commands[word] = new
        return function

    return register


def export(suffix: str, *, extra: str = "", of_session: bool = False) -> Callable[[F], F]:
    """Register a function `(view, path)` that writes files ending in `suffix`.

    It may return a few words about the file. With `of_session` it is given the session instead of the view
    that was shown last.
    """

    def register(function: F) -> F:
        if suffix in _exports and _exports[suffix].function.__module__ != function.__module__:
            raise ValueError(f"two exports want the suffix {suffix!r}")
        _exports[suffix] = Export(suffix, function, extra, of_session)
        return function

    return register


def sink(name: str, *, takes: str = "", extra: str = "") -> Callable[[F], F]:
    """Register a class of `layerstep.sinks.sink.Sink`; it is made with what its user gave after the name."""

    def register(kind: F) -> F:
        if name in _sinks and _sinks[name].kind.__module__ != kind.__module__:
            raise ValueError(f"two sinks want the name {name!r}")
        _sinks[name] = SinkEntry(name, kind, takes, extra)
        return kind

    return register


def rule(
    code: str, name: str, *, severity: str, confidence: str = "exact", cost: str = "look"
) -> Callable[[F], F]:
    """Register a class of `layerstep.doctor.rule.Rule` as a rule of the doctor."""

    def register(kind: F) -> F:
        for word, words in ((severity, SEVERITIES), (confidence, CONFIDENCES), (cost, COSTS)):
            if word not in words:
                raise ValueError(f"{name}: {word!r} is not one of {', '.join(words)}")
        new = RuleEntry(code, name, kind, severity, confidence, cost)
        for word in (code, name):
            if word in _rules and _rules[word].kind.__module__ != kind.__module__:
                raise ValueError(f"two rules want the name {word!r}")
            _rules[word] = new
        return kind

    return register


def all_rules() -> list[RuleEntry]:
    """Every rule once, by its code."""
    load("rules")
    unique = {id(each): each for each in _rules.values()}.values()
    return sorted(unique, key=lambda each: (each.code.rstrip("0123456789"), len(each.code), each.code))


def find_rule(word: str) -> RuleEntry | None:
    """The rule of this code or name, in any case."""
    load("rules")
    lower = word.lower().replace("_", "-")
    return next((entry for key, entry in _rules.items() if key.lower() == lower), None)


def all_sinks() -> dict[str, SinkEntry]:
    """Every tracker that records can be handed to, by name."""
    load("sinks")
    return {name: _sinks[name] for name in sorted(_sinks)}


def load(name: str = "commands") -> None:
    """Import every file of a package once, then other people's entry points."""
    if name in _loaded:
        return
    _loaded.add(name)
    with our_imports():
        package = importlib.import_module(f"layerstep.{name}")
        for module in pkgutil.iter_modules(package.__path__, f"layerstep.{name}."):
            importlib.import_module(module.name)
        for point, home in installed_entry_points(f"layerstep.{name}"):
            _load_plugin(point, home)


def _load_plugin(point: EntryPoint, home: str) -> None:
    """One that cannot be loaded is left out whole and told once: it must not take the prompt with it."""
    tables: tuple[dict[str, Any], ...] = (_commands, _rules, _exports, _sinks)
    before = [table.copy() for table in tables]
    try:
        point.load()
    except (Exception, SystemExit) as error:
        _note_trouble(f"plugin {point.name}", home, error)
        for table, old in zip(tables, before, strict=True):
            table.clear()
            table.update(old)
    for table, old in zip(tables, before, strict=True):
        _plugins.update({_key(table[word]): home for word in table if table[word] is not old.get(word)})


def leave_out_rule(entry: RuleEntry, error: Exception) -> None:
    """A rule whose class cannot be called: it is told once, and asked no more."""
    _note_trouble(f"rule {entry.name}", plugin_of(entry) or "layerstep", error)
    for word in (entry.code, entry.name):
        _rules.pop(word, None)


def _note_trouble(what: str, home: str, error: BaseException) -> None:
    reason = f"{type(error).__name__}: {first_line(error)}"[:200]
    _troubles.append(f"the {what} of {home} is left out: {reason}")


def _key(entry: Entry) -> str:
    return f"{type(entry).__name__} {entry.suffix if isinstance(entry, Export) else entry.name}"


def plugin_of(entry: Entry) -> str:
    """The distribution that a command, a rule, an export or a sink comes from; empty for ours."""
    return _plugins.get(_key(entry), "")


def untold_troubles() -> list[str]:
    """What was wrong with plugins, each once."""
    told, _troubles[:] = _troubles[:], []
    return told


def all_commands() -> list[Command]:
    """Every command once, in the order of the groups, then by name."""
    load()
    unique = {id(c): c for c in _commands.values()}.values()
    return sorted(unique, key=lambda c: (GROUPS.index(c.group), c.name))


def find_command(word: str, *, prefix: bool = True) -> Command | None:
    """The command called `word`, by name, alias or unique prefix of a name."""
    load()
    if word in _commands:
        return _commands[word]
    if not prefix or not word:
        return None
    matches = {c.name: c for c in all_commands() if c.name.startswith(word) and not c.whole_word}
    if len(matches) == 1:
        return next(iter(matches.values()))
    if matches and word.isalpha():
        names = sorted(matches)
        raise UnknownCommand(f"{word!r} could be {', '.join(names)}", "type more of it")
    return None


def all_exports() -> list[Export]:
    """Every kind of file that a view can be written to, by suffix."""
    load("exports")
    return [_exports[suffix] for suffix in sorted(_exports)]


def find_export(name: str) -> Export | None:
    """The export for a file of this name or suffix, in any case: the longest that fits, `.trace.json`."""
    load("exports")
    lower = name.lower()
    fits = [s for s in _exports if lower.endswith(s) or (s.count(".") > 1 and f".{lower}" == s)]
    return _exports[max(fits, key=len)] if fits else None


def near(word: str, candidates: Iterable[str], *, most: int = 3) -> Sequence[str]:
    """What the user may have meant."""
    return difflib.get_close_matches(word, list(candidates), n=most, cutoff=0.6)


def command_names() -> list[str]:
    """Every word that names a command."""
    load()
    return sorted(_commands)
