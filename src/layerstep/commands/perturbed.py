from __future__ import annotations

from layerstep.arguments import Given
from layerstep.edits.edits import Edits
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.tensors.observing import observing
from layerstep.views import Column, Group, Notice, Table, View

MOST_ROWS = 50
MOST_NAMES = 6


@command("perturbed?", group="self", args=(), examples=("perturbed?",), only_looks=True)
def perturbed(session: Session, given: Given) -> View:
    """Say whether anything of the run was disturbed.

    It compares the state now with the state before you typed the first line of this pause that could write:
    random streams, all parameters, buffers and gradients, and every other tensor in reach (inputs, outputs,
    variables of the running functions and what they hold, optimizer state). It also lists the edits in force,
    the lines of the whole session that changed something, and what could not be checked.
    """
    edits = session.instruments.get(Edits)
    changed = [(line, name) for line, outcome in session.prompt.effects.disturbed for name in outcome.changed]
    unseen, unchecked = _unseen(session, {name for _, name in changed})
    rows = [(f"{each.number}  {each.line}", f"{each.where}: {each.state()}") for each in edits.in_force]
    rows += changed + [("(written past torch)", name) for name in unseen if name not in edits.written]
    restored = sum(1 for _, outcome in session.prompt.effects.disturbed if outcome.restored)
    lines = _count(restored, "line")
    also = f"; random streams and buffers that {lines} moved were put back" if restored else ""
    hint = f"not checked: {_some(unchecked)}" if unchecked else edits.past
    if not rows:
        return Notice(f"no: {_proof(session)}{also}", hint, level="good" if not unchecked else "info")
    table = Table((Column("line", "code"), Column("changed", "path")), tuple(rows[:MOST_ROWS]))
    return Group((Notice(f"yes: {_count(len(rows), 'change')}{also}", hint, level="warn"), table))


def _proof(session: Session) -> str:
    what = "random streams, parameters, buffers and gradients are untouched"
    if session.prompt.effects.baseline is None:
        return f"{what}; no line of this pause could write"
    return f"{what}, and so are all other tensors in reach"


def _unseen(session: Session, named: set[str]) -> tuple[list[str], list[str]]:
    """What has changed though no line was seen to change it; what could not be checked."""
    lost = [
        f"random stream {name}, while other threads ran"
        for _, o in session.prompt.effects.disturbed
        for name in o.unsure
    ]
    unchecked = [name for _, outcome in session.prompt.effects.disturbed for name in outcome.unchecked] + lost
    if session.prompt.effects.baseline is None:
        return [], list(dict.fromkeys(unchecked))
    with observing():
        moved = [f"random stream {name}" for name in session.prompt.effects.baseline.streams.changed()]
        if moved and session.prompt.effects.baseline.threads.have_run():
            unchecked += [f"{name}, while other threads ran" for name in moved]
            moved = []
        changed = [name for name in session.prompt.effects.baseline.changed() if name not in named]
    return moved + changed, list(dict.fromkeys(unchecked + session.prompt.effects.baseline.unchecked))


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
