from __future__ import annotations

from layerstep.engine.session import Session
from layerstep.engine.where import Where
from layerstep.nonfinite.catching import hunt_of
from layerstep.registry import command
from layerstep.views import Column, Notice, Table, View


@command("mute", group="stop", usage="[WHERE]", examples=("mute blocks.*.attn", "mute"), complete="where")
def mute(session: Session, rest: str) -> View:
    """Let a module make NaN and Inf: it is meant to.

    What is born in a module of WHERE is no alarm for `catch nan`, `inf` and `nonfinite` any more; what comes
    of it elsewhere is traced back to it, and passed over as well. Without WHERE: what is muted.
    """
    hunt = hunt_of(session)
    if not rest:
        rows = tuple((where.text,) for where in hunt.muted)
        note = f"passed over {hunt.passed_over} times" if rows else "nothing is muted; `mute WHERE`"
        return Table((Column("muted", "path"),), rows, note=note)
    where = Where.parse(rest)
    if len(session.models):
        where.look_up(session.models)
    hunt.muted.append(where)
    return Notice(f"what is born in {rest} is no alarm", "`unmute` takes it back", level="good")


@command("unmute", group="stop", usage="[WHERE]", examples=("unmute",))
def unmute(session: Session, rest: str) -> Notice:
    """Take `mute` back, for one WHERE or for all."""
    hunt = hunt_of(session)
    kept = [where for where in hunt.muted if rest and where.text != rest]
    dropped = len(hunt.muted) - len(kept)
    hunt.muted = kept
    return Notice(f"{dropped} taken back; {len(kept) or 'nothing'} muted now")
