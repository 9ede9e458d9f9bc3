"""What can be typed next. Knows no prompt library, so every front end can use it."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields

from layerstep.config import Config
from layerstep.engine.events import Phase
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.registry import Command, all_commands, find_command

__all__ = ["Candidate", "complete"]

MOST = 100
MOST_CHARACTERS = 1_000
"""Nobody waits for candidates at the end of a line that long."""
_LAST_WORD = re.compile(r"[\w.\[\]$/:~*-]*$")
_DOTTED = re.compile(r"[A-Za-z_][\w.]*$")
_TENSOR = (
    "shape",
    "dtype",
    "device",
    "grad",
    "std()",
    "mean()",
    "min()",
    "max()",
    "abs()",
    "norm()",
    "sum()",
    "isnan()",
    "requires_grad",
    "grad_fn",
)
_MODULE = ("input", "output", "kwargs", "weight", "bias", "training")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word to put in place of the last `length` characters."""

    text: str
    length: int
    note: str = ""


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
    return _argument(session, command, rest)[:MOST]


def _first_word(session: Session, word: str) -> list[Candidate]:
    commands = [Candidate(c.name, len(word), c.summary) for c in all_commands() if c.name.startswith(word)]
    aliases = [Candidate(a, len(word), body) for a, body in session.aliases.items() if a.startswith(word)]
    if not word:
        return commands + aliases
    return (commands + aliases + _expression(session, word))[:MOST]


def _argument(session: Session, command: Command, rest: str) -> list[Candidate]:
    kind = command.complete
    last = _LAST_WORD.search(rest)[0]  # type: ignore[index]
    if callable(kind):
        return [Candidate(text, len(last)) for text in kind(session, rest)]
    if re.search(r"(?:^|\s)if\s", rest) or kind == "expression":
        return _expression(session, rest)
    match kind.partition(":")[0]:
        case "where":
            return _where(session, rest, last)
        case "path":
            return _paths(session, last)
        case "point":
            return _words(last, (str(point.number) for point in session.points.shown))
        case "command":
            return _words(last, (entry.name for entry in all_commands()))
        case "setting":
            return _words(last, (field.name for field in fields(Config)))
        case "choice":
            return _words(last, kind.partition(":")[2].split())
        case "file":
            return _files(last)
        case _:
            return []


def _words(last: str, words: Iterable[str]) -> list[Candidate]:
    return [Candidate(word, len(last)) for word in words if word.startswith(last)]


def _files(last: str) -> list[Candidate]:
    found = sorted(glob.glob(glob.escape(os.path.expanduser(last)) + "*"))
    return [Candidate(path + (os.sep if os.path.isdir(path) else ""), len(last)) for path in found[:MOST]]


def _where(session: Session, rest: str, last: str) -> list[Candidate]:
    if len(rest.split()) > (0 if rest.endswith(" ") or not rest else 1):
        return _words(last, ("enter", "exit", "if"))
    if last.startswith("type:"):
        kinds = sorted({type(module).__name__ for _, module in session.models.everything()})
        return _words(last, (f"type:{kind}" for kind in kinds))
    if last.startswith("op:"):
        return _words(last, (f"op:{name}" for name in sorted(session.opstep.names[Phase.OP])))
    return _paths(session, last) + _words(last, ("type:", "op:"))


def _paths(session: Session, text: str) -> list[Candidate]:
    """Paths segment by segment; if none begins so, those in which the letters occur in order."""
    head, dot, last = text.rpartition(".")
    found: dict[str, str] = {}
    for model in session.models:
        prefix = f"{model.name}." if session.models.are_several or model.is_helper else ""
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
    for path, module in session.models.everything():
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
        names = _words(word, dict.fromkeys(session.scope.names()))
        return names + _paths(session, word)
    if session.scope.knows(head.partition(".")[0]):
        return _words(word, (f"{head}.{name}" for name in _attributes(session, head)))
    paths = _paths(session, word)
    attributes = _MODULE if session.models.ending_in(head) else _TENSOR
    return paths + _words(word, (f"{head}.{name}" for name in attributes))


def _attributes(session: Session, dotted: str) -> list[str]:
    """The attributes of a name that is known; nothing is called to find out."""
    names = dotted.split(".")
    try:
        value = session.scope[names[0]]
        for name in names[1:]:
            value = vars(value).get(name) or getattr(type(value), name, None)
    except Exception:
        return list(_TENSOR)
    if value is None:
        return list(_TENSOR)
    own = [name for name in dir(type(value)) if not name.startswith("_")]
    first = [name for name in _TENSOR if name.removesuffix("()") in own]
    more = [name for name in (*vars(value), *own)] if hasattr(value, "__dict__") else own
    return list(dict.fromkeys([*first, *(name for name in more if not name.startswith("_"))]))
