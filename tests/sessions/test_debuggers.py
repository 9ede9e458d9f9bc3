"""Debuggers for loops written by hand: checks, passes, counts, pipelines."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from layerstep import (
    DiffusionModelDebugger,
    TrainingDebugger,
    UserError,
    create_pytorch_debugger,
    debug_context,
    debug_training_session,
)
from layerstep.sessions import forward_pass
from layerstep.sessions.tensor_record import look_at
from layerstep.tensors.summary import Summary
from play import Clock


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def backward(model: nn.Module, scale: float = 1.0) -> Tensor:
    loss = (model(torch.ones(3, 4)) * scale).square().sum()
    loss.backward()
    return loss


def test_anomaly_detection_names_the_operation() -> None:
    debugger = create_pytorch_debugger()
    with debugger.anomaly_detection() as found:
        model = network()
        torch.log(model(torch.ones(1, 4)) * 0 - 1).sum().backward()
    assert found.findings and debugger.get_debug_summary()["events"]["anomaly"] == len(found.findings)
    with create_pytorch_debugger(enable_anomaly_detection=False).anomaly_detection() as nothing:
        torch.log(network()(torch.ones(1, 4)) * 0 - 1).sum().backward()
    assert not nothing


def test_profiling_and_memory_are_reported(tmp_path: Path) -> None:
    debugger = create_pytorch_debugger(enable_profiling=True, log_dir=tmp_path / "new")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with debugger.profiling(output_file="steps.trace.json") as profiler, debugger.memory_tracking():
        for _ in range(4):
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
    assert profiler.report().steps > 0
    assert json.loads((tmp_path / "new" / "steps.trace.json").read_text())["traceEvents"]
    summary = debugger.get_debug_summary()
    assert (summary["profiles"], summary["memory_reports"]) == (1, 1)
    off = create_pytorch_debugger(enable_memory_tracking=False)
    with off.profiling(), off.memory_tracking():
        backward(model)
    assert (off.get_debug_summary()["profiles"], off.get_debug_summary()["memory_reports"]) == (0, 0)


def test_check_gradients_gives_the_norm_and_notes_what_is_wrong() -> None:
    model, debugger = network(), create_pytorch_debugger()
    backward(model)
    norm = debugger.check_gradients(model, gradient_threshold=1e9)
    assert norm == pytest.approx(float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])))
    assert debugger.events == ()
    debugger.check_gradients(model, gradient_threshold=0.01)
    (event,) = debugger.events
    assert event.event_type == "gradient_norm" and event.data["threshold"] == 0.01
    assert not event.is_anomaly
    model[0].weight.grad[0, 0] = torch.inf  # type: ignore[index]
    debugger.check_gradients(model)
    assert debugger.get_debug_summary()["events"]["gradient_nonfinite"] == 1
    assert create_pytorch_debugger(enable_gradient_checking=False).check_gradients(model) == 0.0


def test_check_model_parameters() -> None:
    model, debugger = network(), create_pytorch_debugger()
    assert debugger.check_model_parameters(model).is_finite
    with torch.no_grad():
        model[0].bias[0], model[2].bias[1] = torch.nan, -torch.inf
    found = debugger.check_model_parameters(model)
    assert (found.nan_parameters, found.inf_parameters) == (("0.bias",), ("2.bias",))
    assert found.total_parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kind", ["tensor", "tuple", "dictionary"])
def test_a_forward_is_watched_layer_by_layer(kind: str) -> None:
    model, x = network(), torch.ones(3, 4)
    given = {"tensor": x, "tuple": (x,), "dictionary": {"input": x}}[kind]
    debugger = create_pytorch_debugger()
    assert torch.equal(debugger.debug_forward_pass(model, given), model(x))
    shapes = {each.name: each.shape for each in debugger.layers}
    assert (shapes["0"], shapes["2"]) == ((3, 8), (3, 2))
    assert not any(module._forward_hooks for module in model.modules())
    debugger.clear_debug_data()
    debugger.debug_forward_pass(model, given, layer_hooks=False)
    assert debugger.layers == ()


class Slow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.05)
        return x


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Calls take the time that they sleep, however busy the machine is."""
    clock = Clock()
    monkeypatch.setattr(forward_pass, "time", SimpleNamespace(perf_counter=lambda: clock() / 1e9))
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


def test_layers_are_timed_with_what_goes_in_and_out(clock: Clock) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(Slow(), nn.Linear(8, 2)))
    debugger = create_pytorch_debugger()
    debugger.debug_forward_pass(model, torch.ones(3, 4))
    seconds = {each.name: each.seconds for each in debugger.layers}
    assert list(seconds) == ["0", "1.0", "1.1", "1", "Sequential"]
    assert seconds["1.0"] >= 0.05 and seconds["1"] >= 0.05 and seconds["Sequential"] >= 0.05
    assert 0 < seconds["0"] < 0.05 and 0 < seconds["1.1"] < 0.05
    assert [each.input_shape for each in debugger.layers] == [(3, 4), (3, 8), (3, 8), (3, 8), (3, 4)]


def test_the_times_leave_out_the_looks(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_slowly(tensor: Tensor) -> Summary:
        clock.sleep(1)
        return look_at(tensor)

    monkeypatch.setattr(forward_pass, "look_at", look_slowly)
    model = nn.Sequential(nn.Identity(), nn.Identity())
    debugger, begun = create_pytorch_debugger(), clock()
    debugger.debug_forward_pass(model, torch.randn(4))
    whole = (clock() - begun) / 1e9
    assert whole >= 3 and debugger.layers[-1].seconds < 0.2 * whole


def test_the_first_layer_that_is_not_finite_is_named() -> None:
    model, debugger = network(), create_pytorch_debugger()
    with torch.no_grad():
        model[2].weight[0, 0] = torch.nan
    debugger.debug_forward_pass(model, torch.ones(3, 4))
    (event,) = [each for each in debugger.events if each.is_anomaly]
    assert event.message == "first in 2"


def test_a_backward_keeps_the_graph_if_asked() -> None:
    debugger, model = create_pytorch_debugger(), network()
    loss = model(torch.ones(3, 4)).sum()
    debugger.debug_backward_pass(loss, retain_graph=True)
    debugger.debug_backward_pass(loss)
    with pytest.raises(RuntimeError):
        debugger.debug_backward_pass(loss)
    debugger.debug_backward_pass(loss.detach().requires_grad_() * torch.nan)
    assert debugger.get_debug_summary()["events"]["loss_nonfinite"] == 1


def test_a_training_step_is_the_plain_one() -> None:
    one, other, x = network(), network(), torch.randn(5, 4)
    labels = torch.tensor([0, 1, 0, 1, 1])
    plain = torch.optim.SGD(one.parameters(), lr=0.1)
    loss = F.cross_entropy(one(x), labels)
    loss.backward()
    plain.step()
    debugger = create_pytorch_debugger()
    found = debugger.debug_training_step(
        other, x, labels, F.cross_entropy, torch.optim.SGD(other.parameters(), lr=0.1)
    )
    assert found["loss"] == loss.item() and found["anomalies"] == 0 and found["gradient_norm"] > 0
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_events_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    logger, model = logging.getLogger("training"), network()
    with caplog.at_level(logging.INFO, "training"):
        create_pytorch_debugger(logger, debug_mode=False).debug_forward_pass(model, torch.ones(1, 4))
        assert not caplog.records
        create_pytorch_debugger(logger).debug_forward_pass(model, torch.full((1, 4), torch.nan))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_report_is_saved_and_data_are_cleared(tmp_path: Path) -> None:
    debugger = create_pytorch_debugger(log_dir=tmp_path / "logs")
    model = network()
    backward(model, 1e6)
    debugger.check_gradients(model)
    path = debugger.save_debug_report("final.json")
    data = json.loads(path.read_text())
    assert path == tmp_path / "logs" / "final.json" and len(data["gradient_norms"]) == 1
    assert data["events"][0].keys() >= {"timestamp", "event_type", "message", "data"}
    debugger.clear_debug_data()
    assert debugger.events == () and debugger.get_debug_summary()["total_anomalies"] == 0


def test_events_are_bounded() -> None:
    model, debugger = network(), create_pytorch_debugger()
    backward(model)
    for _ in range(1200):
        debugger.check_gradients(model, gradient_threshold=0.0)
    assert len(debugger.events) == 1000
    assert debugger.get_debug_summary()["events"]["gradient_norm"] == 1200


def test_a_training_session_checks_all(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with debug_training_session(model, enable_profiling=True, log_dir=tmp_path) as debugger:
        for _ in range(3):
            optimizer.zero_grad()
            backward(model)
            debugger.check_gradients(model)
            optimizer.step()
        with torch.no_grad():
            model[0].bias.fill_(torch.nan)
    summary = json.loads((tmp_path / "debug_report.json").read_text())["summary"]
    assert summary["events"]["parameter_nan"] == 1
    assert (summary["profiles"], summary["memory_reports"], summary["gradient_checks"]) == (1, 1, 3)


def test_a_tensor_is_analysed() -> None:
    debugger = create_pytorch_debugger()
    found = debugger.analyze_tensor(torch.tensor([1.0, 3.0, torch.nan, torch.inf]), "mine")
    assert (found.name, found.shape, found.nan, found.inf, found.is_finite) == ("mine", (4,), 1, 1, False)
    assert found.mean == 2.0 and found.max == 3.0
    assert debugger.get_debug_summary()["events"] == {"tensor_nonfinite": 1}
    model = network()
    assert list(debugger.analyze_model_parameters(model)) == [name for name, _ in model.named_parameters()]
    assert debugger.get_debug_summary()["total_anomalies"] == 1


def test_gradients_are_analysed_one_by_one() -> None:
    model, debugger = network(), create_pytorch_debugger()
    assert debugger.analyze_gradients(model) == {}
    backward(model, 1e3)
    found = debugger.analyze_gradients(model)
    weight = model[2].weight.grad
    assert weight is not None
    assert found["2.weight"].grad_norm == pytest.approx(float(weight.norm()))
    assert found["2.weight"].max_abs_grad == pytest.approx(float(weight.abs().max()))
    assert found["2.weight"].is_exploding and not found["2.weight"].is_vanishing


def test_gradients_that_explode_or_vanish_are_named() -> None:
    model, debugger = network(), create_pytorch_debugger()
    backward(model)
    norms = {name: float(p.grad.norm()) for name, p in model.named_parameters() if p.grad is not None}
    middle = sum(sorted(norms.values())[1:3]) / 2
    assert set(debugger.check_gradient_explosion(model, threshold=middle)) == {
        name for name, norm in norms.items() if norm > middle
    }
    assert set(debugger.check_gradient_vanishing(model, threshold=middle)) == {
        name for name, norm in norms.items() if norm < middle
    }
    model[0].bias.grad[0] = torch.nan  # type: ignore[index]
    assert debugger.check_gradient_explosion(model, threshold=1e9) == ("0.bias",)


def test_the_bytes_of_a_model() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    debugger, count = create_pytorch_debugger(), 4 * 8 + 8 + 8 + 8
    found = debugger.profile_memory_usage(model)
    assert (found.parameters, found.gradients, found.buffers) == (4 * count, 0, 4 * 16 + 8)
    model(torch.randn(3, 4)).sum().backward()
    assert debugger.profile_memory_usage(model).total == 2 * 4 * count + 4 * 16 + 8


def test_in_a_debug_context_the_doctor_watches(caplog: pytest.LogCaptureFixture) -> None:
    model, before = network(), torch.autograd.backward
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with (
        caplog.at_level(logging.INFO, "watched"),
        debug_context("extreme", logger=logging.getLogger("watched")) as debugger,
    ):
        for _ in range(20):  # no zero_grad
            backward(model)
            optimizer.step()
    events = [each for each in debugger.events if each.event_type == "finding"]
    assert any("stale-gradients" in each.message and each.is_anomaly for each in events)
    assert "WARNING" in [record.levelname for record in caplog.records]
    assert torch.autograd.backward is before
    with pytest.raises(UserError, match="no level 'deep'"), debug_context("deep"):
        pass


def test_events_of_the_users_own_are_kept() -> None:
    debugger = create_pytorch_debugger()
    debugger.add_event("custom_error", "no data", is_anomaly=True, batch=7)
    (event,) = debugger.events
    assert (event.event_type, event.message, event.data["batch"]) == ("custom_error", "no data", 7)
    assert debugger.get_debug_summary()["total_anomalies"] == 1


# --- counts of a training ---


def test_steps_are_counted() -> None:
    model, debugger = network(), TrainingDebugger("seed-ads")
    for step, scale in enumerate([1.0, 1e5, 1.0, 1e-7]):
        model.zero_grad()
        debugger.monitor_training_step(model, backward(model, scale), step)
    model.zero_grad()
    last = debugger.monitor_training_step(model, backward(model, float("nan")), 4)
    assert last.loss_anomaly and last.gradients.nonfinite
    summary = debugger.get_training_summary()
    assert summary["total_steps"] == 5 and summary["loss_anomalies"] == 1
    assert summary["anomaly_steps"] == summary["gradient_explosions"] == 2
    assert summary["gradient_vanishing"] == 1
    assert summary["anomaly_rate"] == 0.4 and summary["gradient_vanishing_rate"] == 0.2
    debugger.clear()
    assert debugger.get_training_summary()["anomaly_rate"] == 0.0 and debugger.history == ()


def test_a_bias_before_a_batch_norm_does_not_vanish() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    debugger = TrainingDebugger()
    torch.manual_seed(0)
    loss = F.cross_entropy(model(torch.randn(16, 4)), torch.randint(0, 2, (16,)))
    loss.backward()
    found = debugger.monitor_training_step(model, loss, 0)
    assert found.gradients.is_healthy
    with pytest.raises(UserError):
        TrainingDebugger("nosuch")


# --- pipelines ---


class Pipeline:
    """As much of a diffusion pipeline as is looked at."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {
            "unet": network(),
            "vae": nn.Conv2d(4, 3, 1).half(),
            "scheduler": object(),
            "safety_checker": None,
        }


def test_a_pipeline_is_analysed() -> None:
    pipeline, debugger = Pipeline(), DiffusionModelDebugger()
    found = debugger.analyze_diffusion_pipeline(pipeline)
    assert [each.name for each in found.components] == ["unet", "vae"]
    assert found.total_parameters == sum(p.numel() for p in network().parameters()) + 15
    assert found.components[1].dtypes == ("float16",) and found.others == {"scheduler": "object"}
    assert found.problems == ()
    with torch.no_grad():
        pipeline.components["unet"][0].bias[0] = torch.nan
    assert debugger.analyze_diffusion_pipeline(pipeline).problems == ("unet: 0.bias not finite",)
    with pytest.raises(UserError, match="components"):
        debugger.analyze_diffusion_pipeline(object())


def test_the_latents_of_each_step_are_looked_at() -> None:
    pipeline, debugger = Pipeline(), DiffusionModelDebugger()
    torch.manual_seed(0)
    latents = torch.randn(1, 4, 8, 8)
    assert debugger.monitor_diffusion_step(pipeline, 0, latents).problem == ""
    assert "diverges" in debugger.monitor_diffusion_step(pipeline, 1, latents * 1e4).problem
    assert "constant" in debugger.monitor_diffusion_step(pipeline, 2, torch.zeros(1, 4)).problem
    given = {"latents": latents.masked_fill(latents > 2, torch.nan)}
    assert debugger.on_step_end(pipeline, 3, 10, given) is given
    assert "NaN" in debugger.history[-1].problem and debugger.anomalies == 3
