from __future__ import annotations

from layerstep.engine.session import Session
from layerstep.errors import UnknownCommand
from layerstep.registry import GROUPS, all_commands, command, command_names, find_command, near
from layerstep.views import Column, Fields, Group, Notice, Span, Table, Text, View


@command(
    "help", "h", "?", group="self", usage="[COMMAND]", examples=("help", "help break"), complete="command"
)
def help_(session: Session, rest: str) -> View:
    """List the commands, or explain one.

    A line that is no command is Python in the paused frame; `!` before a line forces Python.
    """
    if not rest:
        return _overview()
    found = find_command(rest.split()[0])
    if found is None:
        raise UnknownCommand(f"no command {rest!r}", suggestions=near(rest, command_names()))
    title = (Span(found.name, "key"), Span(found.usage, "code"))
    body = found.help
    items: list[tuple[str, View]] = [("", Text(body))]
    if found.aliases:
        items.append(("also", Text(", ".join(found.aliases))))
    items.append(("example", Text("\n".join(found.examples))))
    return Fields(title, tuple(items))


def _overview() -> Group:
    views: list[View] = []
    for group in GROUPS:
        entries = [entry for entry in all_commands() if entry.group == group]
        rows = tuple((", ".join((entry.name, *entry.aliases)), entry.summary) for entry in entries)
        views.append(Table((Column("", "key"), Column("")), rows, title=group))
    note = "Anything else is Python in the paused frame: inp, out, mod, name, model, $1, h.1.attn.output, …"
    return Group((*views, Notice("`help COMMAND` says more"), Notice(note)))


@command("apropos", group="self", usage="WORD", examples=("apropos gradient", "apropos stop"))
def apropos(session: Session, rest: str) -> Table:
    """Find commands whose help speaks of a word."""
    word = rest.lower()
    rows = tuple(
        (entry.name, entry.summary)
        for entry in all_commands()
        if word in f"{entry.name} {entry.help}".lower()
    )
    return Table(
        (Column("command", "key"), Column("")), rows, note="" if rows else f"no command speaks of {rest!r}"
    )
