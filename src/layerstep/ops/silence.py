"""Why a point at operations has not stopped: no such name, hidden inside another op, not reached."""

from __future__ import annotations

import difflib

from layerstep._torch import is_scripted
from layerstep.calls.operations import is_whole, matches, plain_name
from layerstep.engine.points import BreakAtOp
from layerstep.engine.session import Session
from layerstep.ops.stepping import OpSteps

__all__ = ["why_silent"]

MOST_NAMES = 4


def why_silent(session: Session, point: BreakAtOp) -> str:
    """In one line; the names that were seen are the evidence."""
    main = session.run.models.main
    if main is None or not main.forwards:
        return "never fired: no forward yet"
    names = list(session.instruments.get(OpSteps).names[point.level])
    if not names:
        return "never fired: no op was seen since it was set" + _unseen_code(session)
    if any(matches(point.op, name) for name in names):
        return "never fired: such an op ran, but not where it looks"
    pattern = plain_name(point.op).removeprefix("aten.")
    holding = [name for name in names if is_whole(name, pattern)]
    if holding:
        below = (
            "" if point.op.startswith("aten.") else f"; `break op:aten.*{pattern.strip('*')}*` looks below"
        )
        return f"never fired: it may be hidden in {holding[0]}, which is one op{below}"
    return f"never fired: no op of that name was seen; {_similar(point.op, names)}{_unseen_code(session)}"


def _similar(wanted: str, names: list[str]) -> str:
    """The names that were seen and are like the one that is looked for, else the first of them."""
    word = plain_name(wanted).removeprefix("aten.").strip("*")
    by_word = {name.removeprefix("aten."): name for name in names}
    close = [seen for seen in by_word if word in seen or (len(seen) > 2 and seen in word)]
    close += difflib.get_close_matches(word, by_word, n=MOST_NAMES)
    close = [by_word[seen] for seen in close]
    found = list(dict.fromkeys(close))[:MOST_NAMES]
    if found:
        return f"similar: {', '.join(found)}"
    more = ", …" if len(names) > MOST_NAMES else ""
    return f"seen: {', '.join(names[:MOST_NAMES])}{more}"


def _unseen_code(session: Session) -> str:
    """Modules whose ops are never seen."""
    scripted = [path for path, module in session.run.models.everything() if is_scripted(module)]
    return f"; {scripted[0]} is TorchScript and runs as one call" if scripted else ""
