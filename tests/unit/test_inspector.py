"""The inspector as a library."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

import layerstep
from layerstep import TensorInspector, UserError
from layerstep.layers.anomalies import anomalies_in


def test_a_report_knows_the_values() -> None:
    report = layerstep.inspect(torch.arange(10.0), "ramp", layer="head", operation="forward")
    assert report.stats is not None and report.stats.mean == 4.5
    assert report.spread is not None and report.spread.median == 4.5
    assert report.places is not None and report.places.argmax == (9,)
    assert (report.name, report.layer, report.operation) == ("ramp", "head", "forward")


def test_a_report_shows_itself_everywhere() -> None:
    report = layerstep.inspect(torch.tensor([1.0, float("nan"), 3.0]), "x<y")
    assert "f32[3] cpu" in str(report) and "nan [1]" in str(report)
    screen = Console(file=io.StringIO(), width=100)
    screen.print(report)
    assert "f32[3] cpu" in screen.file.getvalue()  # type: ignore[attr-defined]
    html = report._repr_html_()
    assert "<pre" in html and "x&lt;y" in html and "<script" not in html


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0),
        torch.empty(3, device="meta"),
        torch.zeros(()),
        torch.eye(4).to_sparse(),
        torch.tensor([1 + 2j]),
        torch.tensor([True, False]),
        torch.full((3,), float("nan")),
    ],
    ids=["empty", "meta", "scalar", "sparse", "complex", "bool", "nan"],
)
def test_any_kind_has_a_report(tensor: torch.Tensor) -> None:
    assert str(layerstep.inspect(tensor)).splitlines()[0] == "tensor"


def test_an_inspector_keeps_reports_and_no_tensors() -> None:
    inspector = TensorInspector(max_tracked_tensors=2)
    numbers = [inspector.inspect_tensor(torch.full((4,), float(i)), f"t{i}", "layer", "op") for i in range(3)]
    assert len(inspector) == 2
    assert inspector.get_tensor_info(numbers[2]).stats.mean == 2.0  # type: ignore[union-attr]
    with pytest.raises(UserError, match="no tensor 1") as caught:
        inspector.get_tensor_info(numbers[0])
    assert caught.value.hint == "2 to 3 are kept"
    inspector.clear()
    assert len(inspector) == 0


def test_compare_says_it_in_words() -> None:
    x = torch.randn(64, 32)
    assert layerstep.compare(x, x.clone()).words == "equal to the bit"
    assert "round trip through bf16" in layerstep.compare(x, x.bfloat16().float()).words


def test_no_tensor_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="inspect wants a tensor, not list"):
        layerstep.inspect([1.0])  # type: ignore[arg-type]


def test_anomalies_miss_no_nan_in_a_large_tensor() -> None:
    tensor = torch.zeros(2300, 2300)
    tensor[1234, 567] = float("nan")
    (found,) = [finding for finding in anomalies_in(tensor) if finding.what == "nan"]
    assert "first at [1234, 567]" in found.text
