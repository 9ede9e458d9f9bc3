"""The report on one tensor: everything about its values, as data and as a view."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from layerstep.tensors.format import number, place, share
from layerstep.tensors.masks import largest_unmasked
from layerstep.tensors.observing import observing
from layerstep.tensors.places import ValuePlaces, find_places
from layerstep.tensors.present import view_of
from layerstep.tensors.risk import risks
from layerstep.tensors.shapes import attempt
from layerstep.tensors.spread import Spread, spread
from layerstep.tensors.summary import Stats, Summary, summarize
from layerstep.views import Column, Fields, Span, Table, Text, View

__all__ = ["Report", "limit_for", "report"]

READ_UP_TO = 1 << 28
"""The most elements to read, about half a second; of more, a sample, unless `exact`."""
SAMPLE = 1 << 23


@dataclass(frozen=True, slots=True)
class Report:
    """What is known about a tensor; `stats` is None where there are no values to read, `note` says why."""

    summary: Summary
    spread: Spread | None
    places: ValuePlaces | None
    risks: tuple[str, ...]

    @property
    def stats(self) -> Stats | None:
        return self.summary.stats

    def view(self, name: str) -> Fields:
        items: list[tuple[str, View]] = [("", view_of(self.summary))]
        for label, text in (
            ("signs", self._signs()),
            ("norms", self._norms()),
            ("outliers", self._outliers()),
            ("first at", self._first()),
            *(("risk", text) for text in self.risks),
        ):
            if text:
                items.append((label, Text(text)))
        if self.spread is not None and self.spread.percentiles:
            items.insert(1, ("percentiles", self._percentiles(self.spread)))
        return Fields((Span(name, "code"),), tuple(items))

    def _signs(self) -> str:
        found = self.stats
        if found is None or not found.count:
            return ""
        looked = found.sampled or found.count
        below, above = (share(count or 0, looked) for count in (found.negative, found.positive))
        return f"negative {below}  positive {above}  zero {found.zero:,}  subnormal {found.subnormal or 0:,}"

    def _norms(self) -> str:
        found = self.stats
        if found is None or found.abs_mean is None:
            return ""
        sizes = f"mean |x| {number(found.abs_mean)}  l1 {number(found.l1)}  l2 {number(found.l2)}"
        return f"{sizes}  max {number(found.max_norm)}"

    @staticmethod
    def _percentiles(spread: Spread) -> Table:
        inner = [(q, value) for q, value in spread.percentiles if 0 < q < 100]
        columns = tuple(Column(f"{q:g}%", right=True) for q, _ in inner)
        note = f"of a sample of {spread.sampled:,}" if spread.sampled is not None else ""
        return Table(columns, (tuple(number(value) for _, value in inner),), note=note)

    def _outliers(self) -> str:
        if self.spread is None or not self.spread.outliers or self.spread.is_one_sided:
            return ""
        bounds = f"[{number(self.spread.outlier_low)}, {number(self.spread.outlier_high)}]"
        return f"{self.spread.outliers:,} outside {bounds}, 6 robust deviations from the median"

    def _first(self) -> str:
        if self.places is None:
            return ""
        names = ("nan", "inf", "min", "max")
        where = (self.places.first_nan, self.places.first_inf, self.places.argmin, self.places.argmax)
        return "  ".join(f"{name} {place(at)}" for name, at in zip(names, where, strict=True) if at)


def report(tensor: torch.Tensor, *, limit: int | None = None, exact: bool = False) -> Report:
    """Report on a tensor of any kind; beyond `limit` elements from a sample. Never raises."""
    with observing():
        summary = summarize(tensor, limit=limit)
        stats = summary.stats
        is_whole = stats is not None and stats.count > 0 and stats.sampled is None
        return Report(
            summary=summary,
            spread=spread(tensor, exact=exact),
            places=find_places(tensor) if is_whole else None,
            risks=tuple(risks(tensor.dtype, stats, largest=largest_unmasked(tensor, stats))) if stats else (),
        )


def limit_for(tensors: list[torch.Tensor]) -> int | None:
    """How many elements of each to read, to answer within a second; None: all."""
    sizes = [attempt(tensor.numel, 0) for tensor in tensors]
    return None if sum(sizes) <= READ_UP_TO else max(SAMPLE // len(sizes), 1 << 12)
