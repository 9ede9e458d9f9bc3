"""What one catchpoint is after."""

from __future__ import annotations

from dataclasses import dataclass

from layerstep.engine.points import Catch
from layerstep.tensors.finite import Bad

__all__ = ["SIDES", "NonfiniteCatch"]

SIDES = ("forward", "backward", "param")


@dataclass(frozen=True, slots=True)
class NonfiniteCatch:
    """NaN, Inf or both, on some sides of a training step."""

    point: Catch
    what: str
    sides: tuple[str, ...]
    every_op: bool = False

    def is_wanted(self, bad: Bad) -> bool:
        if self.what == "nan":
            return bool(bad.nan)
        return bool(bad.plus or bad.minus) if self.what == "inf" else bad.any

    def looks_at(self, module: object) -> bool:
        """Is the output of this module asked for? Without WHERE only those of whole models come here."""
        return self.point.where is None or any(key == id(module) for _, key in self.point.targets)

    def is_in(self, path: str) -> bool:
        """Does a path lie in WHERE, or below it?"""
        targets = [target for target, _ in self.point.targets]
        return self.point.where is None or any(path == t or path.startswith(f"{t}.") for t in targets)
