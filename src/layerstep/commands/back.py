from __future__ import annotations

from layerstep.arguments import Form, Given, Number
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.history.history import History
from layerstep.registry import command


@command(
    "back",
    group="run",
    args=(Form("step", Number("N", least=0, default=1, what="number of training steps")),),
    examples=("back step", "back step 3"),
    whole_word=True,
)
def back(session: Session, given: Given) -> Resume:
    """Go back to an earlier place of the run.

    `back step N` goes back N training steps: the whole program, its data and its random streams are as they
    were at the beginning of that step, and `continue` does the same steps again, bit for bit. N is 1 if it
    is left out; 0 is the beginning of this step. `history on` must have taken checkpoints. If none was kept
    for that step, the run goes on from an earlier one and stops there.

    Your points, aliases and watches stay as they are now. What the program has written to files stays
    written: the same lines are written once more.
    """
    target = session.run.training.count - given.n
    session.instruments.get(History).nearest(target)
    return Resume(Kind.BACK_STEP, step=target)
