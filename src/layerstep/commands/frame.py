from __future__ import annotations

from layerstep.arguments import Given, Number
from layerstep.commands.step import COUNT
from layerstep.commands.where import stack_row
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Stack


def _select(session: Session, index: int) -> Stack:
    pause = session.run.pause
    assert pause is not None
    frame = pause.select(index)
    return Stack((stack_row(index, frame, selected=True),))


@command("up", "u", group="look", args=COUNT, examples=("up",), repeats=True, needs_pause=True)
def up(session: Session, given: Given) -> Stack:
    """Look from the module that called this one.

    `mod`, `inp`, `list` and the variables are then its own.
    """
    assert session.run.pause is not None
    return _select(session, session.run.pause.selected + given.n)


@command("down", "d", group="look", args=COUNT, examples=("up\ndown",), repeats=True, needs_pause=True)
def down(session: Session, given: Given) -> Stack:
    """Look from the module that this one called."""
    assert session.run.pause is not None
    return _select(session, session.run.pause.selected - given.n)


@command(
    "frame",
    group="look",
    args=Number("N", optional=True, what="frame number"),
    examples=("frame 0",),
    needs_pause=True,
)
def frame(session: Session, given: Given) -> Stack:
    """Look from frame N of `where`.

    Without N: show the selected one.
    """
    assert session.run.pause is not None
    return _select(session, session.run.pause.selected if given.n is None else given.n)
