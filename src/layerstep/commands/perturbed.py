from __future__ import annotations

from layerstep.engine.guard import fingerprint, observing
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Column, Group, Notice, Table, View


@command("perturbed?", group="self", examples=("perturbed?",))
def perturbed(session: Session, rest: str) -> View:
    """Say whether anything of the run was disturbed.

    Compares the random streams and the values of all parameters, buffers and gradients with what they
    were before the first line of this pause that could write, and lists the lines of the whole session
    that changed something.
    """
    changed = [(line, name) for line, outcome in session.disturbed for name in outcome.changed]
    unseen = _unseen(session, {name for _, name in changed})
    rows = tuple(
        [(line, name) for line, name in changed] + [("(written past torch)", name) for name in unseen]
    )
    restored = sum(1 for _, outcome in session.disturbed if outcome.restored)
    also = f"; {restored} lines drew random numbers or moved buffers, which were put back" if restored else ""
    if not rows:
        proof = "" if session.baseline is not None else ", for no line of this pause could write"
        text = f"no: random streams, parameters, buffers and gradients are untouched{proof}{also}"
        return Notice(text, level="good")
    table = Table((Column("line", "code"), Column("changed", "path")), rows[:50])
    return Group((Notice(f"yes: {len(rows)} tensors were changed{also}", level="warn"), table))


def _unseen(session: Session, named: set[str]) -> list[str]:
    if session.baseline is None:
        return []
    streams, marks = session.baseline
    with observing():
        moved = [f"random stream {name}" for name in streams.changed()]
    now = fingerprint(session.models)
    return moved + [name for name, mark in now.items() if marks.get(name, mark) != mark and name not in named]
