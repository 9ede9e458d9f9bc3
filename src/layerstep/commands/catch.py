from __future__ import annotations

from collections.abc import Callable, Iterable

from layerstep.commands.break_ import said
from layerstep.crashes.catch_checks import CHECKS
from layerstep.crashes.catching import EXCEPTION, Crashes, exception_check
from layerstep.engine.events import Phase
from layerstep.engine.model_intake import set_or_leave_pending
from layerstep.engine.points import Point, PointKind
from layerstep.engine.session import Session
from layerstep.engine.where import Where
from layerstep.errors import BadArguments
from layerstep.line_syntax import options
from layerstep.nonfinite.catch import SIDES
from layerstep.nonfinite.catching import catch_nonfinite
from layerstep.registry import command
from layerstep.views import View

__all__ = ["KINDS"]

Setter = Callable[[Session, str, str], Point]
"""(session, what, the rest of the line) -> the point that was set."""


def _complete(session: Session, text: str) -> list[str]:
    """What is caught, then where and how."""
    words = text.split()
    last = words.pop() if words and not text.endswith(" ") else ""
    if not words:
        candidates: Iterable[str] = KINDS
    elif words[-1] == "in" or words[0] in CHECKS:
        candidates = (path for path, _ in session.models.everything())
    elif words[0] == EXCEPTION:
        candidates = ("in",)
    else:
        candidates = (word for word in ("in", *SIDES, "--every-op") if word not in words)
    return [each for each in candidates if each.startswith(last)]


@command(
    "catch",
    group="stop",
    usage="nan|inf|nonfinite [in WHERE] [forward|backward|param] [--every-op] | "
    "exception [TYPE] [in WHERE] | shape|dtype|nograd|slow MS [WHERE]",
    examples=(
        "catch nonfinite",
        "catch nan in blocks.* forward",
        "catch nan backward",
        "catch exception",
        "catch exception RuntimeError in blocks.*",
        "catch shape blocks.*",
        "catch dtype",
        "catch nograd head",
        "catch slow 50 blocks.*",
    ),
    complete=_complete,
)
def catch(session: Session, rest: str) -> View:
    """Stop when something goes wrong, wherever it does.

    `catch nan`, `inf`, `nonfinite`: the output of a model, the loss, or a gradient is not finite (`param`: a
    parameter after a step). That costs one sum each. Then the call is run again as it was, on copies, and
    the stop is in that second run, at the operation that made it; `why` shows it again. An Inf that is
    written on purpose, as in masks, is no alarm; `mute PATH` silences others. `in WHERE`: only what these
    modules return. `--every-op` checks each operation as it runs, for what does not come again (slow).
    `catch exception`: a module raises, or the program ends by an exception; the stop is where it was raised,
    before anybody's handler sees it, and says why. `in WHERE`: also what the model itself catches later.
    Meanwhile in-place writes are noted, so that a backward pass which misses the values names who wrote.
    `catch shape WHERE`: the output of a layer has another shape than at first; `catch dtype`: another dtype;
    `catch nograd`: it needs no gradient though gradients are on; `catch slow MS`: a call took longer.
    """
    word, _, text = rest.strip().partition(" ")
    setter = KINDS.get(word)
    if setter is None:
        known = ", ".join(KINDS)
        raise BadArguments(
            f"catch what? {word!r} is none of it" if word else "catch what?", f"one of {known}"
        )
    point = setter(session, word, text.strip())
    return said(point, what=f" {point.what}")


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


def _not_finite(session: Session, what: str, text: str) -> Point:
    """The catches of values that are not finite."""
    rest, flags = options(text, flags="every-op")
    words = rest.split()
    where = None
    if "in" in words:
        place = words.index("in")
        if place + 1 >= len(words):
            raise BadArguments("in what? WHERE is missing", "catch nan in blocks.*")
        where = Where.parse(words[place + 1])
        del words[place : place + 2]
    if unknown := [word for word in words if word not in SIDES]:
        raise BadArguments(f"{unknown[0]!r} is none of {', '.join(SIDES)}")
    sides = tuple(words) or ("forward", "backward")
    set_by = f"catch {what} {text}".rstrip()
    return catch_nonfinite(session, what, where=where, sides=sides, every_op=bool(flags), set_by=set_by)


def _exception(session: Session, what: str, text: str) -> Point:
    """`exception [TYPE] [in WHERE]`."""
    words = text.split()
    where = None
    if "in" in words:
        place = words.index("in")
        if place + 2 != len(words):
            raise BadArguments("in what? one WHERE, at the end", "catch exception in blocks.*")
        where = Where.parse(words[-1])
        words = words[:place]
    if len(words) > 1:
        raise BadArguments(f"{' '.join(words[1:])!r} is too much", "catch exception RuntimeError in blocks.*")
    is_met = where is not None or session.discovery.is_on  # the outermost calls are met without a tap there
    point = session.points.add(
        PointKind.CATCH,
        where,
        what=what,
        check=exception_check(words[0] if words else ""),
        phase=Phase.RAISED,
        root_phases=() if is_met else (Phase.RAISED,),
        set_by=f"catch {what} {text}".rstrip(),
    )
    session.instruments.get(Crashes)  # it notes in-place writes while such a point is set
    if where is not None:
        set_or_leave_pending(session, point)
    session.rearm()
    return point


KINDS: dict[str, Setter] = {
    EXCEPTION: _exception,
    **dict.fromkeys(("nan", "inf", "nonfinite"), _not_finite),
    **dict.fromkeys(CHECKS, _at_modules),
}
