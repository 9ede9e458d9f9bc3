"""What a tracker is handed: the one interface of all sinks, and the values that pass through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerstep.doctor.finding import Finding
    from layerstep.graph.model_graph import ModelGraph
    from layerstep.views import Plot

__all__ = ["Embedding", "Histogram", "Sink"]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts between edges: one more edge than counts."""

    counts: tuple[int, ...]
    edges: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Embedding:
    """Points to be looked at in a projector: a row for each, and a label for each."""

    rows: tuple[tuple[float, ...], ...]
    labels: tuple[str, ...]


class Sink:
    """Where records go. A sink overrides what its tracker can show; what it leaves alone is dropped.

    It is made in the program's thread, before the run: an extra that is missing is found out there. All its
    methods are called in one thread of their own, so they may be slow, and may raise.
    """

    program = ""
    """The name of the script, set before `open`."""

    def open(self) -> None:
        """Begin: make a run, connect. It is called first, and once more if a console is attached again."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of one step, by name: `loss`, `gradient_norm/encoder.0`."""

    def histogram(self, name: str, histogram: Histogram, step: int) -> None:
        """How the values of a tensor are spread."""

    def graph(self, graph: ModelGraph) -> None:
        """The model as it ran."""

    def embedding(self, name: str, embedding: Embedding, step: int) -> None:
        """The rows of a recorded tensor as points."""

    def figure(self, name: str, plot: Plot, step: int) -> None:
        """A plot that was shown."""

    def finding(self, finding: Finding) -> None:
        """What the doctor has found."""

    def artifact(self, path: Path) -> None:
        """A file that was written."""

    def flush(self) -> None:
        """Nothing waits now: send what is kept back."""

    def close(self) -> None:
        """The run is over. It is called last."""
