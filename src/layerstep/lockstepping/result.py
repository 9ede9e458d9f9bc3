"""The answer: where two runs part, how they were mapped, what has no counterpart."""

from __future__ import annotations

from dataclasses import dataclass

from layerstep.lockstepping.weights import WeightDifference

__all__ = ["Lockstep", "Site"]


@dataclass(frozen=True, slots=True)
class Site:
    """The first layer where they differ."""

    a: str
    """Its path in the first; "" is the model itself."""
    b: str
    kinds: tuple[str, str]
    inputs: float | None
    """How far apart its inputs are: the norm of the difference, relative to the larger."""
    outputs: float | None
    limit: float
    """What rounding, or the given tolerance, allows for the outputs."""
    words: str
    """How the first values that differ do, in the words of `compare`."""
    shows_at: tuple[str, str] | None = None
    """The part of the layer that is handed other values; None if the output itself is the first to differ."""
    after: tuple[str, str] | None = None
    """The part before it whose output still agrees."""
    between: tuple[str, ...] = ()
    """What runs between these two on one side only."""
    settings: tuple[str, ...] = ()
    """What is set otherwise: `eps 1e-05 and 1e-06`."""
    weights: tuple[WeightDifference, ...] = ()
    """Its weights that differ."""

    @property
    def name(self) -> str:
        """Both paths, or one if they are the same."""
        a, b = self.a or "the model", self.b or "the model"
        return a if a == b else f"{a} | {b}"


@dataclass(frozen=True, slots=True)
class Lockstep:
    """Two runs on one input. `parts` says whether they differ, `at` where first."""

    a: str
    b: str
    at: Site | None
    weights: tuple[WeightDifference, ...] = ()
    """Weights that differ, wherever they are."""
    mapped: tuple[tuple[str, str], ...] = ()
    """(path in the first, path in the second) of each call that has a counterpart."""
    alone_a: tuple[str, ...] = ()
    """Calls without a counterpart that do something."""
    alone_b: tuple[str, ...] = ()
    calls: tuple[int, int] = (0, 0)
    end: float | None = None
    """How far apart the results of both are."""
    drift: float = 0.0
    """The most that values are apart before they differ."""
    tolerance: float | None = None
    """What was given; None: what rounding does."""
    notes: tuple[str, ...] = ()

    @property
    def parts(self) -> bool:
        return self.at is not None

    def __repr__(self) -> str:
        matched = f"{len(self.mapped)} of {self.calls[0]} and {self.calls[1]} calls mapped"
        if self.at is None:
            return f"Lockstep({self.a} | {self.b}: no difference, {matched})"
        return f"Lockstep({self.a} | {self.b}: first differ in {self.at.name}: {self.at.words}; {matched})"
