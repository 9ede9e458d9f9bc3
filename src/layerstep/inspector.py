"""The inspector as a library: look at any tensor from code, a notebook or a test."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from layerstep._torch.tensors import is_tensor
from layerstep.errors import UserError
from layerstep.render.html import to_html
from layerstep.render.screen import Themed, to_text
from layerstep.tensors.compare import compare as compare_tensors
from layerstep.tensors.comparison import Comparison
from layerstep.tensors.observing import observing
from layerstep.tensors.report import Report, limit_for, report
from layerstep.tensors.summary import summarize
from layerstep.views import Fields

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["TensorInspector", "TensorReport", "compare", "inspect"]


@dataclass(frozen=True, slots=True)
class TensorReport(Report):
    """What is known about a tensor: `.stats`, `.spread`, `.places`, `.risks`; prints and displays itself."""

    name: str = "tensor"
    layer: str = ""
    operation: str = ""

    def fields(self) -> Fields:
        """The report as a view, as `stats X` at the prompt returns it."""
        title = " ".join(filter(None, (self.name, self.layer and f"of {self.layer}", self.operation)))
        return self.view(title)

    def __str__(self) -> str:
        return to_text(self.fields())

    def __rich__(self) -> RenderableType:
        return Themed(self.fields())

    def _repr_html_(self) -> str:
        return to_html(self.fields())


def inspect(
    tensor: torch.Tensor, name: str = "tensor", *, layer: str = "", operation: str = "", exact: bool = False
) -> TensorReport:
    """Look at a tensor of any kind and size; `exact` reads all of it however large it is."""
    if not is_tensor(tensor):
        raise UserError(f"inspect wants a tensor, not {type(tensor).__name__}")
    found = report(tensor, limit=None if exact else limit_for([tensor]), exact=exact)
    return TensorReport(
        found.summary, found.spread, found.places, found.risks, name=name, layer=layer, operation=operation
    )


def _inspect_briefly(tensor: torch.Tensor, name: str, *, layer: str, operation: str) -> TensorReport:
    with observing():
        summary = summarize(tensor, limit=limit_for([tensor]), brief=True)
    return TensorReport(summary, None, None, (), name=name, layer=layer, operation=operation)


def compare(a: torch.Tensor, b: torch.Tensor) -> Comparison:
    """How two tensors differ, in numbers and in words; as `compare A B` at the prompt."""
    return compare_tensors(a, b)


class TensorInspector:
    """Keeps the reports of the tensors that it was shown, the last `max_tracked_tensors` of them.

        inspector = TensorInspector()
        number = inspector.inspect_tensor(out, "logits", layer="head", operation="forward")
        inspector.get_tensor_info(number).stats.mean

    It holds numbers, never the tensors.
    """

    def __init__(self, max_tracked_tensors: int = 1000) -> None:
        if max_tracked_tensors < 1:
            raise UserError("max_tracked_tensors is at least 1")
        self.max_tracked_tensors = max_tracked_tensors
        self._reports: OrderedDict[int, TensorReport] = OrderedDict()
        self._last = 0

    def inspect_tensor(
        self,
        tensor: torch.Tensor,
        name: str,
        layer: str | None = None,
        operation: str | None = None,
        *,
        brief: bool = False,
    ) -> int:
        """Look at a tensor now; the number under which its report is kept.

        `brief` leaves out percentiles, places and risks: of a million values it takes 1 ms, not 60.
        """
        look = _inspect_briefly if brief else inspect
        found = look(tensor, name, layer=layer or "", operation=operation or "")
        self._last += 1
        self._reports[self._last] = found
        while len(self._reports) > self.max_tracked_tensors:
            self._reports.popitem(last=False)
        return self._last

    def get_tensor_info(self, number: int) -> TensorReport:
        """The report with that number; UserError if there is none, or no longer."""
        try:
            return self._reports[number]
        except KeyError:
            first = next(iter(self._reports), None)
            kept = "none is kept" if first is None else f"{first} to {self._last} are kept"
            raise UserError(f"no tensor {number}", kept) from None

    @property
    def reports(self) -> tuple[TensorReport, ...]:
        """The reports that are kept, the oldest first."""
        return tuple(self._reports.values())

    def __len__(self) -> int:
        return len(self._reports)

    def clear(self) -> None:
        """Forget all reports."""
        self._reports.clear()
