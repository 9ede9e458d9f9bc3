"""When does a step end? A pure state machine: (intent, moment) -> stop or go.

It knows neither torch nor hooks: only phases, depths, threads and counts, so that
every rule of stepping can be tested without a model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from layerstep.calls.events import Phase
from layerstep.engine.resume import Kind, Resume

__all__ = ["GO", "Intent", "Moment", "Reach", "begin", "decide", "interrupt"]


class Reach(Enum):
    """Which modules must report for an intent to be decided."""

    NOTHING = 0
    ROOTS = 1
    ENCLOSING = 2
    ALL = 3


@dataclass(frozen=True, slots=True)
class Intent:
    """What the run is on its way to."""

    kind: Kind = Kind.CONTINUE
    count: int = 1
    depth: int = 0
    """`next`, `finish` and op steps end at an exit no deeper than this; the outermost module has depth 1."""
    thread: int = 0
    """Steps belong to the thread that was paused; 0 is any thread."""
    forward: int = 0
    step: int = 0
    everywhere: bool = False
    """`finish` must see every module: the enclosing one began before it could be tapped."""

    @property
    def reach(self) -> Reach:
        return Reach.ALL if self.everywhere else _REACH[self.kind]

    @property
    def needs_depth(self) -> bool:
        """Depth is found by walking frames (7 to 23 µs), so it is asked for only when it decides."""
        return self.kind in (Kind.NEXT, Kind.FINISH, Kind.OP, Kind.KERNEL)


@dataclass(frozen=True, slots=True)
class Moment:
    """An event as the stepper sees it."""

    phase: Phase
    thread: int
    depth: int = 0
    is_root: bool = False
    forward: int = 0
    step: int = 0


GO = Intent()
"""Run until a point says otherwise."""

_REACH = {
    Kind.CONTINUE: Reach.NOTHING,
    Kind.DETACH: Reach.NOTHING,
    Kind.QUIT: Reach.NOTHING,
    Kind.LINE: Reach.NOTHING,  # lines have a stepper of their own, `source_lines.steps`
    Kind.NEXT_LINE: Reach.NOTHING,
    Kind.UNTIL_LINE: Reach.NOTHING,
    Kind.RETURN: Reach.NOTHING,
    Kind.FORWARD: Reach.ROOTS,
    Kind.TRAINED: Reach.ROOTS,
    Kind.FINISH: Reach.ENCLOSING,
    Kind.OP: Reach.ENCLOSING,
    Kind.KERNEL: Reach.ENCLOSING,
    Kind.STEP: Reach.ALL,
    Kind.NEXT: Reach.ALL,
    Kind.INTO: Reach.ALL,
    Kind.INTERRUPT: Reach.ALL,
    Kind.BACK: Reach.ALL,  # who follows the forward decides where it ends
}


def begin(resume: Resume, *, phase: Phase | None, depth: int, thread: int, within: int = 0) -> Intent:
    """The intent of a resume given where the run is paused.

    `phase` is None where no module call is at hand: before the run, or in `set_trace()`
    (then `depth` counts the modules that are running). An op is one deeper than its module. `within` is the
    depth of the module whose ops are being stepped through, if that is how the run came here.
    """
    limit = depth
    if resume.kind in (Kind.FINISH, Kind.OP, Kind.KERNEL) and phase is not None and phase.is_end:
        limit = depth - 1
    if resume.kind in (Kind.OP, Kind.KERNEL) and phase is not None and phase.is_op:
        limit = within or limit
    if resume.kind is Kind.NEXT and phase is None:
        limit = depth + 1
    if resume.kind is Kind.BACK_STEP:  # the checkpoint was gone: this process still runs
        return interrupt()
    bound = 0 if phase is None and depth == 0 else thread
    return Intent(resume.kind, resume.count, limit, bound, resume.forward, resume.step)


def interrupt() -> Intent:
    """Stop at the next boundary, in whichever thread it comes."""
    return Intent(Kind.INTERRUPT)


def decide(intent: Intent, moment: Moment) -> tuple[bool, Intent]:
    """Does the run stop here, and if not, what is it on its way to now?"""
    if intent.thread and moment.thread != intent.thread:
        return False, intent
    if not _ends(intent, moment):
        return False, intent
    counts = (
        intent.kind not in (Kind.OP, Kind.KERNEL) or moment.phase.is_op
    )  # the end of a module ends them all
    if intent.count > 1 and counts:
        return False, replace(intent, count=intent.count - 1)
    return True, GO


def _ends(intent: Intent, moment: Moment) -> bool:
    match intent.kind:
        case Kind.OP | Kind.KERNEL:
            return _ends_ops(intent, moment)
        case _ if moment.phase.is_op:
            return intent.kind is Kind.INTERRUPT
        case Kind.STEP:
            return moment.phase.is_end
        case Kind.INTO:
            return not moment.phase.is_end
        case Kind.NEXT | Kind.FINISH:
            return moment.phase.is_end and moment.depth <= intent.depth
        case Kind.FORWARD:
            return moment.phase is Phase.ENTER and moment.is_root and moment.forward >= intent.forward
        case Kind.TRAINED:
            return moment.phase is Phase.ENTER and moment.is_root and moment.step >= intent.step
        case Kind.INTERRUPT:
            return True
        case _:
            return False


def _ends_ops(intent: Intent, moment: Moment) -> bool:
    """An op ends a step of its own level; so does the end of the module, and a call that shows it is over."""
    if moment.phase.is_op:
        return (moment.phase is Phase.OP) == (intent.kind is Kind.OP)
    return (moment.phase.is_end or moment.phase is Phase.ENTER) and moment.depth <= intent.depth
