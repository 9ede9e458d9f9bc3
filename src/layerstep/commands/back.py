from __future__ import annotations

from dataclasses import replace

from layerstep.arguments import Choice, Form, Given, Number, Word
from layerstep.calls.events import Phase
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.errors import BadArguments, UserError
from layerstep.history.history import History
from layerstep.registry import command
from layerstep.rewind.goal import Goal
from layerstep.rewind.rewinding import go_back
from layerstep.views import Notice


@command(
    "back",
    group="run",
    args=(
        Word("N | PATH", optional=True, name="target", completes="path"),
        Choice("enter|exit", default="exit", name="phase"),
        Form("step", Number("N", least=0, default=1, what="number of training steps")),
        Form("on"),
        Form("off"),
    ),
    examples=("back", "back 2", "back embed", "back on", "back step", "back step 3"),
    whole_word=True,
)
def back(session: Session, given: Given) -> Resume | Notice:
    """Go back in this forward, or over training steps.

    The forward begins again, runs to an earlier place and stops there. The program gets the result of this
    second run. `back` goes to the boundary before this one. A boundary is the entry or the exit of a module:
    from the exit of a Linear, `back` goes to its entry, then to the exit of the layer before it. At a line or
    an op, it goes to the entry of the module that runs. `back N` goes N boundaries back. `back PATH` goes to
    the exit of the last call of PATH before here, or to its entry if that call is still running.

    layerstep first puts back inputs, caches, buffers, attributes and random streams. Changes that you made to
    weights stay. The stop says whether the outputs on the way have the same bits as in the first run.

    For this, layerstep keeps the state at the entry of each forward while a point is set or you step; `info
    cost` says how much. `back off` keeps nothing, and `back on` keeps it again.

    `back step N` goes back N training steps, 1 by default; `back step 0` goes to the beginning of this step.
    The whole program, its data and its random streams are as they were then, and `continue` does the same
    steps again, bit for bit. This needs checkpoints: type `history on` beforehand. If there is none for that
    step, layerstep goes back to an earlier one and runs to the step from there. Your points, aliases and
    watches stay as they are now. Files are not put back, so the program writes the same lines once more.
    """
    if given.form in ("on", "off"):
        session.run.config = replace(session.run.config, back=given.form == "on")
        said = "kept, while a point is set or one steps" if given.form == "on" else "not kept"
        return Notice(f"the entry of each forward is {said}, for `back`")
    if given.form == "step":
        target = session.run.training.count - given.n
        session.instruments.get(History).nearest(target)
        return Resume(Kind.BACK_STEP, step=target)
    if session.run.pause is None or not session.run.pause.stack:
        raise UserError("back: nothing has stopped yet", "it answers at a stop")
    return go_back(session, _goal(session, given.target, Phase(given.phase)))


def _goal(session: Session, target: str, phase: Phase) -> Goal:
    if not target or target.isdigit():
        count = int(target or 1)
        if not count:
            raise BadArguments("back 0 is here")
        return Goal(count)
    path, module = session.run.models.find(target)
    return Goal(module=id(module), phase=phase, name=path)
