"""The two sides of a comparison: models to run, or runs in files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from layerstep._torch import is_compiled
from layerstep.errors import UserError
from layerstep.lockstepping.comparing import compare_models, compare_traces
from layerstep.lockstepping.compiled import compare_compiled
from layerstep.lockstepping.recordings import read_run
from layerstep.lockstepping.result import Lockstep
from layerstep.lockstepping.running import Arguments, arguments_for, trace_of

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Side", "compare_sides", "read_map"]

Side = nn.Module | Path
"""A model, or the file of a run."""


def compare_sides(
    session: Session,
    a: tuple[str, Side],
    b: tuple[str, Side],
    given: Arguments | None,
    *,
    tolerance: float | None = None,
    paths: Mapping[str, str] | None = None,
) -> Lockstep:
    """Compare two sides of any kind; models run on `given`."""
    one, other = a[1], b[1]
    if isinstance(one, Path) and isinstance(other, Path):
        return compare_traces(read_run(one), read_run(other), tolerance=tolerance, paths=paths)
    if given is None:
        raise UserError("no call to take the input from", "`--input EXPR` gives one")
    if isinstance(one, nn.Module) and isinstance(other, nn.Module):
        if _has_compiled(one) != _has_compiled(other):
            eager, compiled = (
                ((a[0], one), (b[0], other)) if _has_compiled(other) else ((b[0], other), (a[0], one))
            )
            if paths:
                raise UserError("--map has no use with a compiled model", "its parts have the same names")
            found = compare_compiled(session, eager, compiled, given, tolerance=tolerance)
            return found if _has_compiled(other) else replace(found, a=a[0], b=b[0])
        return compare_models(session, (a[0], one), (b[0], other), given, tolerance=tolerance, paths=paths)
    if isinstance(one, nn.Module):
        run, rerun = trace_of(session, one, given, title=a[0]), (session, one, given)
        assert isinstance(other, Path)
        return compare_traces(run, read_run(other), tolerance=tolerance, paths=paths, rerun=rerun)
    assert isinstance(other, nn.Module)
    run = trace_of(session, other, arguments_for(other, given), title=b[0])
    return compare_traces(read_run(one), run, tolerance=tolerance, paths=paths)


def _has_compiled(model: nn.Module) -> bool:
    return is_compiled(model) or any(map(is_compiled, model.modules()))


def read_map(file: str) -> dict[str, str]:
    """The lines `path of A = path of B` of a text file; # begins a remark."""
    path = Path(os.path.expanduser(file))
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise UserError(f"cannot read {file}", getattr(error, "strerror", None) or "it is no text") from None
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        left, sign, right = (part.strip() for part in text.partition("="))
        if text and not (left and sign and right):
            raise UserError(f"{file}:{number} is no `path of A = path of B`", text[:60])
        if text:
            found[left] = right
    return found
