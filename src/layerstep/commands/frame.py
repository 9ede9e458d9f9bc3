from __future__ import annotations

from layerstep.commands.step import count_of
from layerstep.commands.where import stack_row
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.registry import command
from layerstep.views import Stack


def _select(session: Session, index: int) -> Stack:
    pause = session.pause
    assert pause is not None
    frame = pause.select(index)
    return Stack((stack_row(index, frame, selected=True),))


@command("up", "u", group="look", usage="[N]", examples=("up",), repeats=True, needs_pause=True)
def up(session: Session, rest: str) -> Stack:
    """Look from the module that called this one.

    `mod`, `inp`, `list` and the variables are then its own.
    """
    assert session.pause is not None
    return _select(session, session.pause.selected + count_of(rest))


@command("down", "d", group="look", usage="[N]", examples=("up\ndown",), repeats=True, needs_pause=True)
def down(session: Session, rest: str) -> Stack:
    """Look from the module that this one called."""
    assert session.pause is not None
    return _select(session, session.pause.selected - count_of(rest))


@command("frame", group="look", usage="[N]", examples=("frame 0",), needs_pause=True)
def frame(session: Session, rest: str) -> Stack:
    """Look from frame N of `where`.

    Without N: show the selected one.
    """
    assert session.pause is not None
    if rest and not rest.isdigit():
        raise BadArguments(f"{rest!r} is no frame number")
    return _select(session, int(rest) if rest else session.pause.selected)
