from __future__ import annotations

from layerstep.arguments import Expr, Flag, Given, Keyword, Rest
from layerstep.edits.edits import Edits
from layerstep.edits.futures import Future, about_numbers, futures_apart, outermost_call, run_future
from layerstep.edits.stepped_futures import SteppedFuture, run_step, steps_apart
from layerstep.edits.sweep import metric_of
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.registry import command, find_command
from layerstep.views import Column, Group, Notice, Table, View

_NOT_AT_CALLS = ("set", "undo", "redo", "whatif", "diff")


@command(
    "whatif",
    group="change",
    args=Rest("EDIT [metric EXPR]", name="text"),
    examples=("whatif ablate blocks.1.mlp", "whatif edit blocks.0 out * 2 metric out.abs().mean()"),
)
def whatif(session: Session, given: Given) -> View:
    """Show what an edit would change, and leave the run as it is.

    EDIT is a line with `edit`, `ablate`, `scale`, `steer`, `skip` or `patch`. This forward runs twice on
    copies: as the run stands, and with the edit. The table shows the layers where the two differ, and how far
    they are apart there: the norm of the difference as a share of the norm. Both draw the random numbers that
    the forward drew from its beginning on. EXPR is a number of the model's output, which is `out` in it.
    """
    line, _, metric = given.text.partition(" metric ")
    call, edits = outermost_call(session), session.instruments.get(Edits)
    word, _, rest = line.strip().partition(" ")
    entry = find_command(word)
    if entry is None or entry.group != "change" or entry.name in _NOT_AT_CALLS:
        raise BadArguments(f"{line!r} is no edit at calls", "whatif ablate PATH")
    with edits.trying() as tried:
        entry.function(session, entry.parse(rest))
    now = edits.for_rerun()
    one, other = run_future(session, call, now), run_future(session, call, [*edits.for_rerun(), *tried])
    return _apart(session, one, other, metric=metric, words=("as it is", "with the edit"))


@command(
    "diff",
    group="change",
    args=(
        Keyword(
            "metric", Expr("EXPR", default="", name="metric"), "computes a number from the output, to compare"
        ),
        Flag("step", "also the backward pass and the optimizer"),
    ),
    examples=("diff", "diff --step metric out.square().mean()"),
)
def diff(session: Session, given: Given) -> View:
    """Show what the edits in force change in this forward.

    The forward runs twice on copies, without the edits and with them. The answer is that of `whatif`.
    With `--step` each of the two goes on with the backward pass of the loss and a step of the optimizers that
    have stepped before, on copies, too. EXPR is the loss, with `out` for the output of the model; without it,
    `out.loss` is taken. The table shows how far gradients and new weights are apart.
    """
    edits = session.instruments.get(Edits).for_rerun()
    if not edits:
        return Notice("no edit at calls is in force", "`whatif EDIT` tries one")
    call = outermost_call(session)
    if given.step:
        plain = run_step(session, call, (), loss=given.metric)
        return _steps_apart(session, plain, run_step(session, call, edits, loss=given.metric))
    one, other = run_future(session, call), run_future(session, call, edits)
    return _apart(session, one, other, metric=given.metric, words=("without edits", "with them"))


def _steps_apart(session: Session, one: SteppedFuture, other: SteppedFuture) -> View:
    off = other.loss - one.loss
    said = Notice(f"loss: {one.loss:.5g} without edits, {other.loss:.5g} with them ({off:+.3g})")
    forward = _apart(session, one.forward, other.forward, metric="", words=("", ""))
    apart, most = steps_apart(one, other), min(20, session.run.config.max_lines)
    if not apart:
        same = Notice("all gradients and new weights have the same bits", level="good")
        return Group((said, forward, same))
    rows = tuple(
        (each.name, f"{each.gradient:.3g}", "" if each.weight is None else f"{each.weight:.3g}")
        for each in apart[:most]
    )
    columns = (
        Column("parameter", "path"),
        Column("gradient by", right=True),
        Column("after the step by", right=True),
    )
    note = f"{len(apart)} of {len(one.gradients)} parameters differ"
    note += f"; {len(apart) - most:,} are not shown" if len(apart) > most else ""
    note += "" if one.weights else "; no optimizer has stepped yet, so no step is compared"
    return Group((said, forward, Table(columns, rows, note=note)))


def _apart(session: Session, one: Future, other: Future, *, metric: str, words: tuple[str, str]) -> View:
    views: list[View] = []
    if metric.strip():
        before, after = metric_of(session, one, metric), metric_of(session, other, metric)
        views.append(
            Notice(
                f"{metric.strip()}: {before:.5g} {words[0]}, {after:.5g} {words[1]} ({after - before:+.3g})"
            )
        )
    views += about_numbers(one)
    apart = futures_apart(one, other)
    if not apart:
        views.append(Notice("nothing changes: all outputs have the same bits", level="good"))
        return Group(tuple(views))
    most = min(20, session.run.config.max_lines)
    rows = tuple(
        (each.path, str(each.call) if each.call > 1 else "", f"{each.distance:.3g}") for each in apart[:most]
    )
    columns = (Column("layer", "path"), Column("call", right=True), Column("differs by", right=True))
    note = f"{len(apart)} of {len(one.outputs)} calls differ"
    note += f"; {len(apart) - most:,} are not shown" if len(apart) > most else ""
    views.append(Table(columns, rows, note=note))
    return Group(tuple(views))
