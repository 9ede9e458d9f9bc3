from __future__ import annotations

from typing import Any

import torch
from torch import nn

from layerstep.arguments import Given, Rest
from layerstep.documentation import documentation
from layerstep.engine.session import Session
from layerstep.engine.values import value_of
from layerstep.errors import UnknownCommand, UserError
from layerstep.expressions.scope import EvaluationFailed
from layerstep.line_syntax import is_expression
from layerstep.registry import (
    GROUPS,
    Command,
    all_commands,
    command,
    command_names,
    find_command,
    near,
    plugin_of,
)
from layerstep.tensors.present import present
from layerstep.views import Column, Fields, Group, Notice, Span, Table, Text, View

__all__ = ["flowing"]

_NAMES = {
    "inp": "the input of the module that is selected",
    "out": "the output of the module that is selected",
    "kwargs": "the keyword arguments of the call",
    "mod": "the module that is selected",
    "name": "the path of the module that is selected",
    "model": "the model that the module is in",
    "forward": "how often the model has been called",
    "step": "how often the optimizer has stepped",
    "grad_in": "the gradient of the module's input, at a stop in backward",
    "grad_out": "the gradient of the module's output, at a stop in backward",
}
MOST_DOC = 12
"""The lines of a docstring."""


@command(
    "help",
    "h",
    "?",
    group="self",
    args=Rest("COMMAND | X", optional=True, name="asked", completes="command"),
    examples=("help", "help break"),
)
def help_(session: Session, given: Given) -> View:
    """List the commands, or explain a command or a name.

    `?` before or after a word does the same: `? break`, `break?`, `out.shape?`. For an expression X, it shows
    what X is, where it comes from, and the beginning of its documentation.
    A line that is no command is Python in the paused frame; `!` before a line forces Python.
    """
    rest = given.asked
    if not rest:
        return _overview()
    word = rest.split()[0]
    found = find_command(word, prefix=False)
    if found is None and not session.run.scope.knows(word):
        found = find_command(word)
    if found is not None:
        return _command(found)
    if not is_expression(rest):
        raise UnknownCommand(f"no command {rest!r}", suggestions=near(rest, command_names()))
    try:
        return _explained(session, rest, value_of(session.prompt, rest))
    except EvaluationFailed as failure:
        raise _unknown(rest, failure) from None


def _unknown(text: str, failure: EvaluationFailed) -> UserError:
    if not isinstance(failure.error, NameError):
        return failure
    return UnknownCommand(f"no command or name {text!r}", suggestions=near(text, command_names()))


def _command(found: Command) -> View:
    usage = [Span(found.usage, "code")] if found.usage else []
    items: list[tuple[str, View]] = []
    if found.aliases:
        items.append(("also", Text(", ".join(found.aliases))))
    explained = {
        item.usage[1:-1]: Text(item.help) for form in found.forms for item in form.options if item.help
    }
    items += explained.items()
    if found.examples:
        items.append(("example", Text("\n".join(found.examples))))
    if home := plugin_of(found):
        items.append(("from", Text(home)))
    title = Fields((Span(found.name, "key"), *usage), ())
    return Group((title, Text(flowing(found.help)), Fields((), tuple(items))))


def flowing(text: str) -> str:
    """Help text with a line for each paragraph, so that the screen breaks it where the screen ends.

    Blank lines, indented lines, and a line that begins with code after the end of a sentence begin a new one.
    """
    lines: list[str] = []
    for line in text.splitlines():
        before = lines[-1] if lines else ""
        begins = not line.strip() or line[0].isspace() or (before.endswith((".", ":")) and line[0] in "`-")
        if not before.strip() or before[0].isspace() or begins:
            lines.append(line)
        else:
            lines[-1] = f"{before} {line}"
    return "\n".join(lines)


def _explained(session: Session, text: str, value: Any) -> Fields:
    """What a name stands for."""
    title = (Span(text, "code"), Span(type(value).__name__, "type"))
    items: list[tuple[str, View]] = []
    if text in _NAMES:
        items.append(("", Text(_NAMES[text])))
    paths = session.run.models.paths_of(value) if isinstance(value, nn.Module) else []
    if paths:
        items.append(("path", Text(", ".join(paths[:4]))))
    items.append(("value", present(value, limit=session.run.config.sample_above)))
    if callable(value) or type(value).__module__ != "builtins":
        lines = documentation(value if _has_own_doc(value) else type(value)).splitlines()
        shown = lines[:MOST_DOC] + (["…"] if len(lines) > MOST_DOC else [])
        if shown:
            items.append(("doc", Text("\n".join(shown))))
    return Fields(title, tuple(items))


def _has_own_doc(value: Any) -> bool:
    return callable(value) and not isinstance(value, nn.Module | torch.Tensor)


def _overview() -> Group:
    views: list[View] = []
    for group in GROUPS:
        entries = [entry for entry in all_commands() if entry.group == group]
        rows = tuple((", ".join((entry.name, *entry.aliases)), entry.summary) for entry in entries)
        views.append(Table((Column("", "key"), Column("")), rows, title=group))
    note = "Anything else is Python in the paused frame: inp, out, mod, name, model, $1, h.1.attn.output, …"
    return Group((*views, Notice("`help COMMAND` says more"), Notice(note)))


@command(
    "apropos",
    group="self",
    args=Rest("WORD"),
    examples=("apropos gradient", "apropos stop"),
    at_once=True,
    only_looks=True,
)
def apropos(session: Session, given: Given) -> Table:
    """Find commands whose help mentions a word."""
    word = given.word.lower()
    rows = tuple(
        (entry.name, entry.summary)
        for entry in all_commands()
        if word in f"{entry.name} {entry.help}".lower()
    )
    return Table(
        (Column("command", "key"), Column("")),
        rows,
        note="" if rows else f"no command speaks of {word!r}",
    )
