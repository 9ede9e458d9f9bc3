from __future__ import annotations

from dataclasses import replace

from layerstep.arguments import Choice, Form, Given, Number, Word
from layerstep.calls.events import Phase
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.errors import BadArguments, UserError
from layerstep.history.history import History
from layerstep.registry import command
from layerstep.rewind.rewinding import go_back
from layerstep.rewind.running_forward import Goal
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

    The forward begins again and runs silently to an earlier place. There it stops, and the program gets the
    result of this second run. `back` goes to the boundary before this one: from the exit of a layer without
    parts to its entry, from there to the exit of the layer before. At a line or an op it goes to the entry of
    the module that runs. `back N` goes N boundaries back. `back PATH` goes to the exit of the last call of
    PATH before here, or to its entry if it runs here.

    Inputs, caches, buffers, attributes and random streams are put back first. What changed weights by hand
    keeps its effect. The outputs on the way are compared with those of the run before, and it is said whether
    they are the same to the bit.

    While a point is set or one steps, the entry of each forward is kept for this; `info cost` says what that
    takes. `back off` keeps nothing, `back on` does again.

    `back step N` goes back N training steps: the whole program, its data and its random streams are as they
    were at the beginning of that step, and `continue` does the same steps again, bit for bit. N is 1 if it
    is left out; 0 is the beginning of this step. `history on` must have taken checkpoints. If none was kept
    for that step, the run goes on from an earlier one and stops there. Your points, aliases and watches stay
    as they are now. What the program has written to files stays written, and the same lines are written once
    more.
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
