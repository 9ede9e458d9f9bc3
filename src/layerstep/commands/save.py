from __future__ import annotations

import os
import re
from pathlib import Path

from layerstep.arguments import File, Given
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.line_syntax import joined, read_commands
from layerstep.registry import command
from layerstep.views import Group, Notice, View


@command("save", group="stop", args=File(), examples=("save points.txt",))
def save(session: Session, given: Given) -> Notice:
    """Write points, watches and aliases to a file of commands.

    `source FILE` sets them again.
    """
    lines: list[str] = []
    for number, point in enumerate(session.points.shown, start=1):
        line = point.line()
        lines.append(line)
        if point.condition is not None and not line.endswith(f"if {point.condition.text}"):
            lines.append(f"condition {number} {point.condition.text}")  # `catch` and `watch` take no `if`
        if point.ignore:
            lines.append(f"ignore {number} {point.ignore}")
        if not point.enabled:
            lines.append(f"disable {number}")
        if point.commands:
            lines += [f"commands {number}", *point.commands, "end"]
    lines += [f"watch {watch.expression.text}" for watch in session.prompt.watches.values()]
    lines += [f"alias {name} = {body}" for name, body in session.prompt.aliases.items()]
    try:
        Path(os.path.expanduser(given.file)).write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {given.file}", error.strerror or "") from None
    count = "1 line" if len(lines) == 1 else f"{len(lines)} lines"
    return Notice(f"{count} in {given.file}", level="good")


@command("source", group="stop", args=File(), examples=("save points.txt\nsource points.txt",))
def source(session: Session, given: Given) -> View:
    """Run the commands in a file, as if typed.

    Lines that begin with # are comments. A line that resumes the run is refused; to run a whole session from
    a file, start with `layerstep run -x FILE`.
    """
    name: str = given.file
    file = Path(os.path.expanduser(name)).resolve()
    running = session.prompt.sourcing
    if file in running:
        raise UserError(f"{name} is being run already", "a file cannot source itself")
    text = read_commands(name)
    running.append(file)
    try:
        views = _run_lines(session, name, text)
    finally:
        running.remove(file)
    return Notice(f"{len(views)} commands from {name}", level="good") if views else Group(())


def _run_lines(session: Session, name: str, text: str) -> list[View]:
    views: list[View] = []
    offset = session.points.last
    for line in joined(text):
        view, resume = session.prompt.run_line(_renumbered(line, offset), origin=name)
        if resume is not None:
            views.append(Notice(f"{line!r} in {name} would resume; left out", level="warn"))
        elif view is not None:
            views.append(view)
    return views


def _renumbered(line: str, offset: int) -> str:
    """`commands 1` in a saved file means the first point that this file sets."""
    named = r"^(commands|condition|ignore|disable) (\d+)"
    return re.sub(named, lambda m: f"{m[1]} {int(m[2]) + offset}", line)
