"""How a model treats tokens and samples, as tried once on a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from layerstep.doctor.finding import Place

__all__ = ["LEAK", "SampleFacts", "SequenceFacts"]

LEAK = 1e-4
"""Of a causal model the change is zero; those that convolve by FFT leak their rounding."""


@dataclass(frozen=True, slots=True)
class SequenceFacts:
    """How a model treats a row of tokens, tried once on a copy in evaluation mode.

    What could not be tried is None or empty. A change is the largest one, as a share of the outputs' spread.
    """

    model: str
    name: str
    """The argument that holds the tokens: `input 0`, or its name."""
    length: int
    made_at: Place
    """The line that made the loss."""
    shift: int | None = None
    """The labels are the tokens moved by so many places. None: they are something else."""
    has_attention: bool = False
    table: str = ""
    """The path of the embedding."""
    leak: float | None = None
    """How much later tokens change the outputs before them, at places whose label counts."""
    leak_at: str = ""
    """The first module whose early outputs change although its early inputs do not."""
    context: float | None = None
    """How much the other tokens change the outputs at the ends."""
    order: float | None = None
    """How much another order of the inner tokens changes the outputs at the ends."""
    padding: int = 0
    """Padding tokens at one end of the row that was tried."""
    padding_known_by: str = ""
    """What tells which tokens are padding: an argument, the embedding, or the labels."""
    padding_change: float | None = None
    """How much the outputs at real tokens change when the padding is cut off, or its embedding changed."""
    padding_at: str = ""
    hidden: bool = False
    """Do the outputs at real tokens depend on the padding, and on no other real token?"""
    skipped: str = ""
    """Why nothing was tried."""

    @property
    def is_causal(self) -> bool | None:
        return None if self.leak is None else self.leak <= LEAK


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """How a model treats the samples of a batch, tried once on a copy in evaluation mode."""

    model: str
    samples: int
    change: float = 0.0
    """How much the outputs of some samples change with the other ones, as a share of their spread."""
    at: str = ""
    """The first module in which they do."""
    dims: int = 0
    """Of what that module is given."""
    has_softmax: bool = False
    """Does a softmax or an attention run over as many values as there are samples?"""
    order: float | None = None
    """How much another order of the places changes the outputs, of a model with attention."""
    table: str = ""
    """The layer whose places were turned round."""

    def at_paths(self, full: Callable[[str], str]) -> SampleFacts:
        """The same with whole paths."""
        return replace(
            self, at=full(self.at) if self.at else "", table=full(self.table) if self.table else ""
        )
