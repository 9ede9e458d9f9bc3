"""What can be typed next. Knows no prompt library, so every front end can use it."""

from __future__ import annotations

import functools
import glob
import linecache
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import get_args, get_type_hints

import torch

from layerstep.arguments import Completes
from layerstep.calls.events import Phase
from layerstep.config import Config
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.frontends.expected import expected
from layerstep.frontends.members import member, members_of
from layerstep.ops.stepping import OpSteps
from layerstep.registry import all_commands, find_command
from layerstep.source_lines.places import function_names, known_files
from layerstep.source_lines.statements import read_source
from layerstep.source_lines.watcher import SourceLines

__all__ = ["Candidate", "complete"]

MOST = 100
MOST_CHARACTERS = 1_000
"""Nobody waits for candidates at the end of a line that long."""
_LAST_WORD = re.compile(r"[\w.\[\]$/:~*-]*$")
_DOTTED = re.compile(r"[A-Za-z_][\w.]*$")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word to put in place of the last `length` characters."""

    text: str
    length: int
    note: str = ""
    shown: str = ""
    """What a list of candidates shows for it, if not its text."""


def complete(session: Session, line: str) -> list[Candidate]:
    """The candidates for the end of a line, best first."""
    if len(line) > MOST_CHARACTERS:
        return []
    word, space, rest = line.lstrip().partition(" ")
    if not space:
        return _first_word(session, word)
    try:
        command = find_command(word)
    except UserError:
        return []
    if command is None:
        return _expression(session, line)
    wanted = expected(command.forms, rest)
    options = _words(wanted.last, wanted.options)
    if wanted.last.startswith("-") and options:
        return options
    found = _words(wanted.last, wanted.forms)
    for kind in wanted.kinds:
        found += _of_kind(session, kind, rest, wanted.last)
    return (found + _words(wanted.last, wanted.words) + options)[:MOST]


def _first_word(session: Session, word: str) -> list[Candidate]:
    commands = [Candidate(c.name, len(word), c.summary) for c in all_commands() if c.name.startswith(word)]
    aliases = [
        Candidate(a, len(word), body) for a, body in session.prompt.aliases.items() if a.startswith(word)
    ]
    if not word:
        return commands + aliases
    return (commands + aliases + _expression(session, word))[:MOST]


def _of_kind(session: Session, kind: Completes, rest: str, word: str) -> list[Candidate]:
    """What the session knows of a kind."""
    if callable(kind):
        return _words(word, kind(session))
    last = _LAST_WORD.search(rest)[0]  # type: ignore[index]
    match kind:
        case "expression":
            return _expression(session, rest)
        case "where":
            return _where(session, last)
        case "path":
            return _paths(session, last)
        case "point":
            return _words(last, (str(point.number) for point in session.points.shown))
        case "command":
            return _words(last, (entry.name for entry in all_commands()))
        case "setting":
            name, space, _ = rest.partition(" ")
            return _words(last, _values(name) if space else (field.name for field in fields(Config)))
        case "file":
            return _files(last)
        case _:
            return []


def _words(last: str, words: Iterable[str]) -> list[Candidate]:
    return [Candidate(word, len(last)) for word in words if word.startswith(last)]


def _values(setting: str) -> Iterable[str]:
    """What a setting can be set to."""
    hint = get_type_hints(Config).get(setting)
    return ("on", "off") if hint is bool else get_args(hint)


def _files(last: str) -> list[Candidate]:
    found = dict.fromkeys(sorted(glob.glob(glob.escape(os.path.expanduser(last)) + "*")))
    ends = [(path, os.sep if os.path.isdir(path) else "") for path in found]
    return [Candidate(path + end, len(last), shown=os.path.basename(path) + end) for path, end in ends[:MOST]]


def _where(session: Session, last: str) -> list[Candidate]:
    if last.startswith("type:"):
        kinds = sorted({type(module).__name__ for _, module in session.run.models.everything()})
        return _words(last, (f"type:{kind}" for kind in kinds))
    if last.startswith("op:"):
        seen = sorted(session.instruments.get(OpSteps).names[Phase.OP])
        return _words(last, dict.fromkeys(f"op:{name}" for name in (*seen, *_ops())))[:MOST]
    file, colon, line = last.rpartition(":")
    if colon:
        return [
            Candidate(f"{file}:{text}", len(last), note, text) for text, note in _lines(session, file, line)
        ]
    files = sorted(
        {os.path.basename(name) + ":" for name in known_files(session.instruments.get(SourceLines).script)}
    )
    functions = function_names(session.instruments.get(SourceLines).script) if last else []
    words = _words(last, ("type:", "op:", *functions))
    return _paths(session, last) + words + [replace(each, shown=each.text) for each in _words(last, files)]


def _lines(session: Session, file: str, begun: str) -> list[tuple[str, str]]:
    """The lines of a file that a point can stop at, each with its text; its functions."""
    own = [name for name in known_files(session.instruments.get(SourceLines).script) if name.endswith(file)]
    source = read_source(own[0]) if own and file else None
    if source is None:
        return []
    lines = [(str(line), linecache.getline(own[0], line).strip()) for line in sorted(source.stops.values())]
    functions = [(each.name, f"line {each.first}") for each in source.functions]
    return [(text, note) for text, note in [*lines, *functions] if text.startswith(begun)][:MOST]


@functools.cache
def _ops() -> list[str]:
    """The names of torch's functions, those of neural networks first."""
    groups = (torch.nn.functional, torch, torch.Tensor)
    names = (name for group in groups for name in sorted(vars(group)) if callable(vars(group)[name]))
    return [name for name in dict.fromkeys(names) if name.islower() and not name.startswith("_")]


def _paths(session: Session, text: str) -> list[Candidate]:
    """Paths segment by segment; if none begins so, those in which the letters occur in order."""
    head, dot, last = text.rpartition(".")
    found: dict[str, str] = {}
    for model in session.run.models:
        prefix = f"{model.name}." if session.run.models.are_several or model.is_helper else ""
        for path in _parents(session, model.names.ending_in(head) if dot else [""], head, prefix):
            for name, child in model.names.children_of(path):
                if name.startswith(last):
                    found.setdefault(f"{head}.{name}" if dot else prefix + name, type(child).__name__)
        if not dot and model.name.startswith(last):
            found.setdefault(model.name, type(model.root).__name__)
    if found:
        return [Candidate(path, len(text), kind) for path, kind in found.items()][:MOST]
    return _fuzzy(session, text)


def _parents(session: Session, paths: list[str], head: str, prefix: str) -> list[str]:
    if prefix and (head + ".").startswith(prefix):
        paths = [*paths, head[len(prefix) :]]
    return paths


def _fuzzy(session: Session, text: str) -> list[Candidate]:
    if not text:
        return []
    letters = text.lower()
    hits = []
    for path, module in session.run.models.everything():
        stretch = _stretch(letters, path.lower())
        if stretch:
            hits.append((stretch, len(path), path, type(module).__name__))
    return [Candidate(path, len(text), kind) for _, _, path, kind in sorted(hits)[:20]]


def _stretch(letters: str, path: str) -> int:
    """How much of a path holds the letters in this order, from the left; 0 if it does not."""
    start = path.find(letters[0])
    at = start
    for letter in letters[1:]:
        if at < 0:
            return 0
        at = path.find(letter, at + 1)
    return at - start + 1 if at >= 0 else 0


def _expression(session: Session, text: str) -> list[Candidate]:
    match = _DOTTED.search(text)
    if match is None:
        return []
    word = match[0]
    head, dot, _ = word.rpartition(".")
    if not dot:
        names = _words(word, dict.fromkeys(session.run.scope.names()))
        return names + _paths(session, word)
    if session.run.scope.knows(head.partition(".")[0]):
        return _words(word, (f"{head}.{name}" for name in _attributes(session, head)))
    paths = _paths(session, word)
    there = {candidate.text for candidate in paths}
    more = (f"{head}.{name}" for name in _path_attributes(session, head))
    return paths + _words(word, (text for text in more if text not in there))


def _attributes(session: Session, dotted: str) -> list[str]:
    """The attributes of what a dotted name holds; nothing is called to find out."""
    first, *names = dotted.split(".")
    try:
        value = session.run.scope[first]
    except Exception:
        return members_of(None)
    for name in names:
        value = member(value, name)
    return members_of(value)


def _path_attributes(session: Session, head: str) -> list[str]:
    """The attributes of the module at a path, or of what it holds under the last name."""
    modules = session.run.models.ending_in(head)
    if modules:
        return members_of(modules[0][1])
    path, _, name = head.rpartition(".")
    holders = session.run.models.ending_in(path) if path else []
    return members_of(member(holders[0][1], name)) if holders else members_of(None)
