from __future__ import annotations

from layerstep.arguments import Condition, Flag, Given
from layerstep.calls.events import Phase
from layerstep.commands.break_ import condition_of
from layerstep.commands.edit import REACH, WHERE, reach_of
from layerstep.edits.edits import Edits
from layerstep.edits.skipping import dropping_result, without_running
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.points.description import confirmation
from layerstep.registry import command
from layerstep.views import Notice


@command(
    "skip",
    group="change",
    args=(WHERE, Flag("bare"), *REACH, Condition()),
    examples=("skip blocks.1.mlp", "skip blocks.1.norm1 for 1"),
)
def skip(session: Session, given: Given) -> Notice:
    """Let a module return its input, in every call from now on.

    The module still runs, and its result is dropped. So random streams and buffers change as without the
    edit, and the rest of the run can be compared. With `--bare` it does not run. Its input must have the
    shape of its output. The rest is as in `edit`.
    """
    if given.bare and given.tokens:
        raise BadArguments("--bare skips whole calls", "leave tokens or --bare out")
    edits, reach = session.instruments.get(Edits), reach_of(given)
    point = edits.add(
        given.where,
        without_running if given.bare else dropping_result(reach),
        line=f"skip {given.typed}",
        phase=Phase.ENTER if given.bare else Phase.EXIT,
        reach=reach,
        condition=condition_of(given),
    )
    return confirmation(point, ": it returns its input" + (" and does not run" if given.bare else ""))
