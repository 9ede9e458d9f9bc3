from __future__ import annotations

from layerstep.arguments import Form, Given, Number, Path
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.rewind.replay import Replays, replay, replay_until
from layerstep.views import Notice, View


@command(
    "replay",
    group="look",
    args=(
        Number("FORWARD", optional=True, least=1),
        Form("until", Path()),
        Form("on"),
        Form("off"),
    ),
    examples=("replay on", "replay off"),
)
def replay_(session: Session, given: Given) -> View:
    """Run the last forward again on copies, to look at it.

    For a forward that is over; in one that runs, `back` goes back. `replay on` keeps the beginning of each
    forward from the next one on: copies of its inputs and buffers, and the random streams. `replay` lists the
    calls of that forward. `replay until PATH` shows the last call of a module as a stop does. `PATH.input`
    and `PATH.output` are then those of the replay, until the run goes on.

    The run does not notice: everything is put back. Nothing stops in a replay, your hooks are not called, and
    the weights are those of now.
    """
    if given.form in ("on", "off"):
        session.instruments.get(Replays).turn(given.form == "on")
        kept = "kept, from the next one on" if given.form == "on" else "not kept"
        return Notice(f"the beginning of each forward is {kept}, for `replay`")
    if given.form == "until":
        return replay_until(session, session.run.models.find(given.path)[1])
    return replay(session, given.forward)
