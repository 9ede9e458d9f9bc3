from __future__ import annotations

from layerstep.arguments import Given, Where
from layerstep.engine.session import Session
from layerstep.module_paths.where import Where as WherePattern
from layerstep.nonfinite.catching import search_of
from layerstep.registry import command
from layerstep.views import Column, Notice, Table, View


@command("mute", group="stop", args=Where(optional=True), examples=("mute blocks.*.attn", "mute"))
def mute(session: Session, given: Given) -> View:
    """Ignore NaN and Inf that a module makes.

    `catch nan`, `catch inf` and `catch nonfinite` no longer stop at NaN and Inf that a module of WHERE makes,
    nor at values elsewhere that come from them. Without WHERE, `mute` lists what is muted.
    """
    hunt = search_of(session)
    if not given.where:
        rows = tuple((where.text,) for where in hunt.muted)
        note = f"passed over {hunt.passed_over} times" if rows else "nothing is muted; `mute WHERE`"
        return Table((Column("muted", "path"),), rows, note=note)
    where = WherePattern.parse(given.where)
    if len(session.run.models):
        where.look_up(session.run.models)
    hunt.muted.append(where)
    return Notice(
        f"NaN and Inf made in {given.where} are not reported", "`unmute` reverses this", level="good"
    )


@command("unmute", group="stop", args=Where(optional=True), examples=("unmute",))
def unmute(session: Session, given: Given) -> Notice:
    """Take `mute` back, for one WHERE or for all."""
    hunt = search_of(session)
    kept = [where for where in hunt.muted if given.where and where.text != given.where]
    dropped = len(hunt.muted) - len(kept)
    hunt.muted = kept
    return Notice(f"{dropped} taken back; {len(kept) or 'nothing'} muted now")
