"""The tensor line: shape first, then values, then memory; it wraps between its parts, never inside one."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text as RichText

from layerstep.tensors.format import human_bytes, number, share
from layerstep.views import TensorView

__all__ = ["TensorLine"]


def _parts(view: TensorView) -> Iterator[RichText]:
    """The pieces of the line, each of which stays whole."""
    shape = ", ".join("*" if size < 0 else str(size) for size in view.shape)
    head = RichText.assemble((view.dtype, "type"), (f"[{shape}]", "shape"), f" {view.device}")
    yield head.append(f" {view.layout}", "dim") if view.layout else head
    if view.count:
        yield from _values(view)
    if view.nbytes is not None:
        yield RichText(human_bytes(view.nbytes))
    if view.requires_grad:
        yield RichText("grad", "good")
    if view.sampled is not None:
        yield RichText(f"sample of {view.sampled:,}", "warn")
    if view.note:
        yield RichText(view.note, "dim")


def _values(view: TensorView) -> Iterator[RichText]:
    looked = view.sampled or view.count
    if view.dtype == "bool":
        yield RichText.assemble(("true ", "dim"), share(looked - view.zero, looked))
        return
    if view.count == 1 and view.mean is not None:
        yield RichText.assemble(("= ", "dim"), number(view.mean))
        return
    if view.mean is not None:
        yield RichText.assemble(("μ ", "dim"), number(view.mean), (" σ ", "dim"), number(view.std))
        yield RichText(f"[{number(view.min)}, {number(view.max)}]")
    counts = RichText()
    if not view.dtype.startswith(("i", "u")):  # integers cannot be bad
        for name, count in (("nan", view.nan), ("inf", view.inf)):
            counts.append(f"{name} ", "dim").append(f"{count:,} ", "bad" if count else "")
    yield counts.append("zero ", "dim").append(share(view.zero, looked))


class TensorLine:
    """A tensor view as something rich can print at any width."""

    def __init__(self, view: TensorView) -> None:
        self.parts = list(_parts(view))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        widths = [part.cell_len for part in self.parts]
        return Measurement(
            min(max(widths), options.max_width), min(sum(widths) + 2 * len(widths), options.max_width)
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = RichText()
        for part in self.parts:
            if line and line.cell_len + 2 + part.cell_len > options.max_width:
                yield line
                line = RichText("  ")
                line.append_text(part)
            else:
                line.append("  " if line else "").append_text(part)
        yield line
