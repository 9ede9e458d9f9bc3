"""A sweep: the same patch at one module after another, and what each does to a number of the forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from layerstep.edits.acting import Acting, Make, Occasion, Reach
from layerstep.edits.futures import Future, outermost_call, run_future
from layerstep.edits.sources import SourceOf
from layerstep.edits.values import replacing, same_shape
from layerstep.engine.points import Edit
from layerstep.errors import UserError
from layerstep.expressions.scope import run_python
from layerstep.module_paths.where import Where

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Swept", "metric_of", "patched", "sweep"]

MOST = 2_000
"""Modules of one sweep, each a forward."""


@dataclass(frozen=True, slots=True)
class Swept:
    """One module of a sweep."""

    path: str
    metric: float | None
    """None where the patch does not fit."""
    trouble: str = ""


def patched(path: str, source: SourceOf, *, reach: Reach) -> Make:
    """Puts the value of another run in place of what a module returns."""

    def value(old: Tensor, occasion: Occasion) -> Tensor:
        return same_shape(source(occasion.place.path.partition("|")[0]), old, path)

    return replacing(value, reach=reach)


def metric_of(session: Session, future: Future, metric: str) -> float:
    """The number that an expression makes of the model's output, which is `out` in it."""
    scope = session.run.scope_at(None)
    scope["out"] = future.output
    value, _ = run_python(metric, scope)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"{metric!r} is no single number", "metric out[0, -1, 5]") from None


def sweep(
    session: Session, where: str, source: SourceOf, *, metric: str, reach: Reach
) -> tuple[float, list[Swept]]:
    """The metric of this forward, and with each module patched by itself."""
    call, models = outermost_call(session), session.run.models
    found = Where.parse(where).look_up(models)
    if len(found) > MOST:
        raise UserError(
            f"{where} means {len(found):,} modules", f"a sweep runs a forward for each; at most {MOST:,}"
        )
    plain = metric_of(session, run_future(session, call, keep=False), metric)
    rows = []
    for path, _ in found:
        acting = Acting(session.run, reach, patched(path, source, reach=reach))
        edit = Edit(Where.parse(path), change=acting, set_by="")
        try:
            future = run_future(session, call, [edit], keep=False)
            rows.append(Swept(path, metric_of(session, future, metric)))
        except UserError as error:
            rows.append(Swept(path, None, str(error)))
    return plain, rows
