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

    This is for a forward that is over; in a running one, use `back`. `replay on` makes layerstep keep the
    beginning of each forward from now on: copies of its inputs and buffers, and the random streams. `replay`
    lists the calls of the last forward. `replay until PATH` shows the last call of a module like a stop.
    `PATH.input` and `PATH.output` are then the values of the replay, until the run goes on.

    A replay changes nothing: everything is put back. It does not stop at points or call your hooks, and it
    uses the weights of now.
    """
    if given.form in ("on", "off"):
        session.instruments.get(Replays).turn(given.form == "on")
        kept = "kept, from the next one on" if given.form == "on" else "not kept"
        return Notice(f"the beginning of each forward is {kept}, for `replay`")
    if given.form == "until":
        return replay_until(session, session.run.models.find(given.path)[1])
    return replay(session, given.forward)
