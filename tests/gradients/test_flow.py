"""Gradient flow: sizes, window, both detections, intensity, files, animation, health at its boundaries."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from layerstep import GradientDebugger, GradientFlow, UserError
from layerstep.gradients.debugger import Health, Thresholds
from layerstep.gradients.log import GradientLog, clipping_of
from layerstep.gradients.sizes import Size, combined, measure

HEADER = "step,layer,mean_abs_grad,max_abs_grad,grad_norm,is_vanishing,is_exploding"


def filled(steps: int = 5, *, value: float = 0.1, **options: object) -> GradientFlow:
    flow = GradientFlow(0, **options)  # type: ignore[arg-type]
    for step in range(steps):
        flow.record_step(step, {"layer": [value] * 4})
    return flow


def with_issues(steps: int, issues: int, bad: float) -> Health:
    flow = GradientFlow(0)
    for step in range(steps):
        flow.record_step(step, {"layer": [bad if step < issues else 0.1]})
    return flow.summary_report().overall_health


def test_the_numbers_of_a_step() -> None:
    frame = GradientFlow().record_step(7, {"b": np.array([3.0, -4.0]), "a": torch.tensor([[1.0, -1.0]])})
    assert frame.step == 7
    assert [layer.name for layer in frame.layers] == ["a", "b"]
    b = frame.layers[1]
    assert (b.mean_abs_grad, b.max_abs_grad, b.grad_norm) == (3.5, 4.0, 5.0)
    assert b.flow_intensity == 1.0
    assert frame.layers[0].flow_intensity == pytest.approx(math.sqrt(2) / 5)


def test_the_window_rolls() -> None:
    flow = GradientFlow(3)
    for step in range(10):
        flow.record_step(step, {"a": [0.1]})
    assert [frame.step for frame in flow.frames] == [7, 8, 9]
    assert len(filled(300)) == 300
    with pytest.raises(UserError):
        GradientFlow(-1)


@pytest.mark.parametrize(
    "values, vanishes, explodes",
    [
        ([1e-8, 1e-8], True, False),
        ([1e-7], False, False),
        ([1e3], False, False),
        ([1e-9, 1000.1], False, True),
        ([], True, False),
        ([0.0], True, False),
    ],
)
def test_vanishing_by_the_mean_and_exploding_by_the_peak(
    values: list[float], vanishes: bool, explodes: bool
) -> None:
    (layer,) = GradientFlow().record_step(0, {"a": values}).layers
    assert (layer.is_vanishing, layer.is_exploding) == (vanishes, explodes)


def test_other_thresholds() -> None:
    own = GradientFlow(thresholds=Thresholds(vanishing=1e-6, exploding=100.0))
    low, high = own.record_step(0, {"high": [500.0, 200.0], "low": [1e-8]}).layers[::-1]
    assert low.is_vanishing and high.is_exploding
    with pytest.raises(UserError, match="autotrainer"):
        GradientFlow(thresholds="nosuch")


@pytest.mark.parametrize(
    ("preset", "vanishing", "exploding"),
    [
        ("layerstep", ["tiny"], ["peak"]),
        ("seed-animator", ["tiny"], ["peak"]),
        ("seed-ads", ["small", "tiny"], ["broad", "peak"]),
        ("seed-email", [], ["above one", "broad", "peak"]),
        ("aws", ["tiny"], []),
        ("autotrainer", ["small", "tiny"], ["broad", "peak"]),
    ],
)
def test_each_preset_has_its_own_idea(preset: str, vanishing: list[str], exploding: list[str]) -> None:
    gradients = {
        "tiny": [1e-9, 1e-9],
        "small": [5e-7],
        "above one": [1.0, 0.5],
        "broad": [8.0] * 100,
        "peak": [2e3],
        "last": [0.9],
    }
    layers = GradientFlow(thresholds=preset).record_step(0, gradients).layers
    assert [layer.name for layer in layers if layer.is_vanishing] == vanishing
    assert [layer.name for layer in layers if layer.is_exploding] == exploding


def test_autotrainer_compares_with_the_last_layer() -> None:
    flow = GradientFlow(thresholds="autotrainer")
    (first, last) = flow.record_step(0, {"a": [5e-5], "b": [1e-4]}).layers
    assert not first.is_vanishing and not last.is_vanishing
    (first, _) = flow.record_step(1, {"a": [5e-5], "b": [1.0]}).layers
    assert first.is_vanishing


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), st.lists(st.floats(-1e6, 1e6), max_size=9))
def test_intensity_is_by_the_largest_norm(one: list[float], other: list[float]) -> None:
    layers = GradientFlow().record_step(0, {"a": one, "b": other}).layers
    largest = max(layer.grad_norm for layer in layers)
    for layer in layers:
        assert 0.0 <= layer.flow_intensity <= 1.0
        assert layer.flow_intensity == pytest.approx(layer.grad_norm / largest if largest else 0.0)


def test_json_comes_back(tmp_path: Path) -> None:
    flow = filled(2)
    flow.record_step(2, {"layer": [math.nan, 1.0], "more": [1e-9]})
    path = tmp_path / "new" / "folder" / "flow.json"
    flow.export_json(path)
    written = json.loads(path.read_text())
    assert list(written[0]) == ["step", "layers"]
    assert list(written[0]["layers"][0]) == [
        "name",
        "mean_abs_grad",
        "max_abs_grad",
        "grad_norm",
        "is_vanishing",
        "is_exploding",
        "flow_intensity",
    ]
    assert written[2]["layers"][0]["grad_norm"] is None
    again = GradientFlow.from_json(path)
    assert again.frames[:2] == flow.frames[:2]
    assert math.isnan(again.frames[2].layers[0].grad_norm)
    assert again.summary_report().overall_health is Health.CRITICAL


def test_csv_has_seven_columns(tmp_path: Path) -> None:
    flow = GradientFlow()
    flow.record_step(0, {"encoder": [0.1], "a,b": [0.0]})
    flow.record_step(12, {"encoder": [2e3, math.inf]})
    flow.export_csv(tmp_path / "out" / "flow.csv")
    assert (tmp_path / "out" / "flow.csv").read_text().splitlines() == [
        HEADER,
        '0,"a,b",0.00000000e0,0.00000000e0,0.00000000e0,1,0',
        "0,encoder,1.00000000e-1,1.00000000e-1,1.00000000e-1,0,0",
        "12,encoder,inf,inf,inf,0,1",
    ]


def test_an_animation_of_nothing_says_so() -> None:
    assert GradientFlow().to_ascii_animation() == "(no gradient frames recorded)\n"


def test_an_animation_shades_by_intensity() -> None:
    flow = GradientFlow()
    for step, low in enumerate((0.0, 0.125, 0.374, 0.375, 0.625, 0.874, 0.875, 1.0)):
        flow.record_step(step, {"embed": [low], "attn": [1.0]})
    flow.record_step(8, {"attn": [1.0, math.nan]})
    assert flow.to_ascii_animation().splitlines() == [
        "Gradient Flow Animation (step → right, layer ↓)",
        "layer  012345678",
        "─" * 16,
        " attn  ████████!",
        "embed   ░░▒▓▓██ ",
    ]


def test_an_animation_can_be_bounded() -> None:
    flow = GradientFlow(0)
    for step in range(200):
        flow.record_step(step, {"a.very.long.path." * 5 + "end": [0.1], "b": [0.2]})
    lines = flow.to_ascii_animation(width=80).splitlines()
    assert max(map(len, lines)) == 80
    assert lines[3].startswith("…") and "end  " in lines[3]


def test_a_healthy_run() -> None:
    summary = filled().summary_report()
    assert summary.overall_health is Health.HEALTHY
    assert summary.layers_with_vanishing_grads == summary.layers_with_exploding_grads == ()
    assert summary.total_steps == 5
    assert GradientFlow().summary_report().total_steps == 0
    assert len(summary.recommendations) == 1


@pytest.mark.parametrize(
    "steps, issues, bad, health",
    [
        (10, 5, 1e4, Health.PROBLEMS_DETECTED),  # exactly a half is not more than a half
        (10, 6, 1e4, Health.CRITICAL),
        (10, 1, 1e4, Health.PROBLEMS_DETECTED),
        (10, 3, 1e-9, Health.MINOR_ISSUES),
        (10, 4, 1e-9, Health.PROBLEMS_DETECTED),
        (10, 10, 1e-9, Health.PROBLEMS_DETECTED),
        (10, 1, 1e-9, Health.MINOR_ISSUES),
        (10, 0, 1e-9, Health.HEALTHY),
        (100, 1, math.nan, Health.CRITICAL),
        (100, 1, math.inf, Health.CRITICAL),
    ],
)
def test_health_at_the_boundaries(steps: int, issues: int, bad: float, health: Health) -> None:
    assert with_issues(steps, issues, bad) is health


def test_health_is_named_as_ever() -> None:
    assert [str(each) for each in Health] == ["Healthy", "MinorIssues", "ProblemsDetected", "Critical"]


def odd_gradients() -> dict[str, torch.Tensor]:
    return {
        "half": torch.tensor([3.0, -4.0], dtype=torch.float16),
        "bfloat": torch.tensor([3.0, -4.0], dtype=torch.bfloat16),
        "double": torch.tensor([3.0, -4.0], dtype=torch.float64),
        "sparse": torch.sparse_coo_tensor(
            torch.tensor([[0, 2, 2]]), torch.tensor([3.0, -2.0, -2.0]), (4,), check_invariants=True
        ),
        "strided": torch.tensor([[3.0, 9.0], [-4.0, 9.0]])[:, 0],
        "complex": torch.tensor([3.0, 4.0j]),
    }


def test_gradients_of_every_kind_are_measured() -> None:
    found = dict(zip(odd_gradients(), measure(list(odd_gradients().values())), strict=True))
    for name, size in found.items():
        assert (size.most, size.norm) == pytest.approx((4.0, 5.0)), name
        assert size.mean == pytest.approx(7 / 4 if name == "sparse" else 3.5), name
    meta, empty = measure([torch.empty(3, device="meta"), torch.empty(0)])
    assert math.isnan(meta.norm)
    assert empty == (0.0, 0.0, 0.0)


def test_norms_that_single_precision_cannot_square() -> None:
    large, small = measure([torch.tensor([3e30, -4e30]), torch.tensor([3e-30, 4e-30])])
    assert large.norm == pytest.approx(5e30) and large.most == pytest.approx(4e30)
    assert small.norm == pytest.approx(5e-30)


def test_several_gradients_are_as_one() -> None:
    one, other = torch.randn(5), torch.randn(3, 4)
    whole = torch.cat([one, other.flatten()])
    assert combined(measure([one, other]), [5, 12]) == pytest.approx(measure([whole])[0])
    assert math.isnan(combined([Size(1, 1, 1), Size(math.nan, math.nan, math.nan)], [1, 1]).most)


def test_clipping_is_the_ninetieth_percentile_of_the_last_two_hundred() -> None:
    warm = [1e6] * 10
    found = clipping_of([*warm, *[500.0] * 50, *map(float, range(1, 201))])
    assert found.steps == 200
    assert found.recommended == pytest.approx(np.percentile(range(1, 201), 90))
    assert found.clipped_by(found.recommended) == 20 and found.clipped_by(200.0) == 0
    assert found.ceiling is None
    assert math.isnan(clipping_of(warm).recommended)
    assert clipping_of([*warm, 1.0, math.nan, math.inf]).nonfinite == 2
    assert clipping_of([*warm, 0.2, 0.7, *[1.0] * 5]).ceiling == 1.0


def test_a_log_is_bounded_and_puts_layers_together() -> None:
    log = GradientLog(budget=1 << 20, max_frames=4)
    log.learn([("a.weight", "a", 3), ("a.bias", "a", 1)])
    for step in range(1, 10):
        log.add(step, ("a.weight", "a.bias"), [Size(1.0, 2.0, 3.0), Size(5.0, 5.0, 4.0)])
    assert log.steps == [6, 7, 8, 9]
    assert log.of("a")[-1].size == pytest.approx((2.0, 5.0, 5.0))
    assert log.of("a.bias")[-1].size == (5.0, 5.0, 4.0)
    log.add_updates(["a.weight", "a.bias"], [0.3, 0.4], [3.0, 4.0])
    assert log.of("a")[-1].ratio == pytest.approx(0.1)
    small = GradientLog(budget=100)
    small.learn([("a", "a", 1), ("b", "b", 1)])
    for step in range(5):
        small.add(step, ("a", "b"), [Size(1, 1, 1)] * 2)
    assert len(small) == 1


def test_two_optimizers_of_one_step_are_one_frame() -> None:
    log = GradientLog(budget=1 << 20)
    log.learn([("a", "a", 1), ("b", "b", 1)])
    log.add(1, ("a", "b"), [Size(1, 1, 1), Size(9, 9, 9)])
    log.add(1, ("b",), [Size(2, 2, 2)])
    assert len(log) == 1
    assert [log.of(name)[0].size.norm for name in ("a", "b")] == [1, 2]


def test_the_debugger_reads_a_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    debugger = GradientDebugger(model)
    for _ in range(12):
        model.zero_grad()
        model(torch.randn(3, 4)).square().sum().backward()
        frame = debugger.record_step()
    assert [layer.name for layer in frame.layers] == ["0.bias", "0.weight", "2.bias", "2.weight"]
    grad = model[0].weight.grad
    assert frame.layers[1].grad_norm == pytest.approx(float(grad.norm()))
    assert debugger.analyze_gradient_flow().overall_health is Health.HEALTHY
    assert debugger.vanishing_layers() == debugger.exploding_layers() == ()
    total = math.sqrt(sum(float(p.grad.norm()) ** 2 for p in model.parameters()))
    assert debugger.recommend_clipping().norms[-1] == pytest.approx(total)


def test_the_debugger_takes_gradients_layer_by_layer() -> None:
    debugger = GradientDebugger()
    for scale in (1.0, 1e5):
        debugger.record_gradient_flow("deep", torch.full((2,), 1e-9))
        debugger.record_gradient_flow("top", [scale, scale])
    assert [frame.step for frame in debugger.flow.frames] == [0, 1]
    assert debugger.vanishing_layers() == ("deep",)
    assert debugger.exploding_layers() == ("top",)
    assert debugger.analyze_gradient_flow().overall_health is Health.CRITICAL
    with pytest.raises(UserError):
        debugger.record_step()
    debugger.clear()
    assert len(debugger.flow) == 0
