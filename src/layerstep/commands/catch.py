from __future__ import annotations

from collections.abc import Callable

from layerstep.commands.break_ import described, set_or_leave_pending
from layerstep.engine.catches import CHECKS
from layerstep.engine.events import Phase
from layerstep.engine.points import Point, PointKind
from layerstep.engine.session import Session
from layerstep.engine.where import Where
from layerstep.errors import BadArguments
from layerstep.registry import command
from layerstep.views import Notice, View

__all__ = ["KINDS"]

Setter = Callable[[Session, str, str], Point]
"""(session, what, the rest of the line) -> the point that was set."""


@command(
    "catch",
    group="stop",
    usage="shape|dtype|nograd|slow MS [WHERE]",
    examples=("catch shape blocks.*", "catch dtype", "catch nograd head", "catch slow 50 blocks.*"),
    complete="where",
)
def catch(session: Session, rest: str) -> View:
    """Stop when something goes wrong, wherever it does.

    `catch shape WHERE`: the output of a layer has another shape than at first; `catch dtype`: another dtype;
    `catch nograd`: it needs no gradient though gradients are on; `catch slow MS`: a call took longer.
    """
    word, _, text = rest.strip().partition(" ")
    setter = KINDS.get(word)
    if setter is None:
        raise BadArguments(f"catch what? {word!r} is none of it" if word else "catch what?")
    point = setter(session, word, text.strip())
    return Notice(f"catch {point.number} {point.what}: {describe(point)}", level="good")


def describe(point: Point) -> str:
    """Where a catchpoint looks, in a few words."""
    return described(point) if point.where is not None else "everywhere"


def _at_modules(session: Session, what: str, text: str) -> Point:
    """The catches that ask at the exit of each module."""
    words = text.split()
    argument = words.pop(0) if what == "slow" and words else ""
    if len(words) > 1:
        raise BadArguments(f"{' '.join(words[1:])!r} is too much")
    where = Where.parse(words[0] if words else "**")
    check, phases = CHECKS[what](argument)
    point = session.points.add(
        PointKind.CATCH,
        where,
        what=what,
        check=check,
        phases=phases,
        phase=Phase.EXIT,
        set_by=f"catch {what} {text}".rstrip(),
    )
    set_or_leave_pending(session, point)
    return point


KINDS: dict[str, Setter] = dict.fromkeys(CHECKS, _at_modules)
