from __future__ import annotations

from collections import Counter

import torch

from layerstep.arguments import Given, Path
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.memory.views import OUTSIDE
from layerstep.profile.flops import Flops, count_flops
from layerstep.registry import command
from layerstep.tensors.format import flop_count, share
from layerstep.tensors.observing import observing
from layerstep.views import Column, Table, View

ROWS = 20


@command(
    "flops",
    group="cost",
    args=Path(optional=True),
    examples=("flops", "flops blocks.1"),
)
def flops(session: Session, given: Given) -> View:
    """Count the floating-point operations, module by module.

    The outermost call of this stop runs once more on copies: the forward, and the backward if gradients are
    on. Each operation counts by torch's own formula, for the module whose code called it; a multiply and an
    add count as two. Matrix products, convolutions, recurrent layers and attention, fused or not, have
    formulas. Element-wise operations are ignored, and all others are listed as not counted. Masked attention
    counts in full.
    """
    stack = session.run.pause.stack if session.run.pause is not None else []
    outer = next((f for f in reversed(stack) if f.module is not None and f.call is None), None)
    if outer is None or outer.module is None:
        raise UserError("no call of a model is running here", "`break PATH`, `continue`, then `flops`")
    inside = session.run.models.find(given.path)[0] if given.path else ""
    found = count_flops(
        session, outer.module, args=outer.args, kwargs=outer.kwargs, backward=torch.is_grad_enabled()
    )
    with observing():
        return _table(session, found, inside)


def _table(session: Session, found: Flops, inside: str) -> Table:
    roots = {model.name for model in session.run.models}
    is_whole = not inside or inside in roots

    def is_asked(path: str) -> bool:
        return is_whole or any(f"{name}.".startswith(f"{inside}.") for name in path.split("|"))

    paths = list(filter(is_asked, found.forward | found.backward))
    both = {path: found.forward[path] + found.backward[path] for path in paths}
    paths.sort(key=lambda path: -both[path])
    whole = found.total
    most = min(ROWS, session.run.config.max_lines)
    rows = [_row(path or OUTSIDE, found, [path], whole) for path in paths[:most]]
    if len(paths) > most:
        rows.append(_row(f"… {len(paths) - most:,} more", found, paths[most:], whole))
    rows.append(_row("all" if not inside else f"all of {inside}", found, paths, whole))
    notes = ["a multiply and an add count as two"]
    if not found.has_backward:
        notes.append("forward only: gradients are off here, or nothing needs one")
    uncounted: Counter[str] = Counter()
    for (path, name), count in found.uncounted.items():
        uncounted[name] += count if is_asked(path) else 0
    if uncounted := +uncounted:
        names = [f"{name} ×{count}" for name, count in uncounted.most_common(8)]
        more = len(uncounted) - len(names)
        notes.append(f"not counted: {', '.join(names)}" + (f", {more} more kinds" if more > 0 else ""))
    columns = (
        Column("module", "path"),
        *(Column(name, right=True) for name in ("forward", "backward", "both", "share")),
    )
    return Table(columns, tuple(rows), note="\n".join(notes))


def _row(name: str, found: Flops, paths: list[str], whole: int) -> tuple[str, ...]:
    forward = sum(found.forward[path] for path in paths)
    backward = sum(found.backward[path] for path in paths)
    part = share(forward + backward, whole) if whole else "-"
    return name, flop_count(forward), flop_count(backward), flop_count(forward + backward), part
