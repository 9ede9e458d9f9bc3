"""What people do with debugging tools elsewhere, done with ours from beginning to end."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import layerstep
from layerstep import (
    DebugConfig,
    DebugSession,
    HookAction,
    HookBuilder,
    HookTrigger,
    ModelPerformanceMetrics,
    TrainingDebugger,
    create_pytorch_debugger,
    debug_session,
)
from layerstep.demo.model import TinyTransformer


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(32, 8)
    return x, x[:, :3].argmax(dim=1)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def test_a_first_session() -> None:
    session = debug_session(output=io.StringIO())
    session.start()
    number = session.tensor_inspector.inspect_tensor(torch.linspace(0, 1, 1000), "mine", "layer_1", "forward")
    session.gradient_debugger.record_gradient_flow("layer_1", [0.01, 0.02, 0.015, 0.008])
    report = session.stop()
    stats = session.tensor_inspector.get_tensor_info(number).stats
    assert stats is not None and stats.mean == pytest.approx(0.5)
    assert report.summary()["gradient_health"] == "Healthy" and report.summary()["tensors"] == 1


def test_a_training_loop_that_records_for_itself(model: nn.Module, tmp_path: Path) -> None:
    config = DebugConfig(
        max_tracked_tensors=1000,
        max_gradient_history=200,
        enable_visualization=True,
        output_dir=tmp_path,
        sampling_rate=0.1,
    )
    session = DebugSession(config, model, output=io.StringIO())
    session.start()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(40):
        x, y = data()
        out = model(x)
        session.tensor_inspector.inspect_tensor(out, "model_output", operation="forward")
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            accuracy = float((out.argmax(dim=1) == y).float().mean())
            session.model_diagnostics.record_performance(
                ModelPerformanceMetrics(training_step=step, loss=loss.item(), accuracy=accuracy)
            )
    report = session.stop()
    assert sum(each.accuracy is not None for each in report.performance) == 2
    assert sum(each.name == "model_output" for each in report.tensors) == 40
    assert json.loads((tmp_path / "report.json").read_text())["summary"]["steps"] == 40
    assert (tmp_path / "report.html").exists()


def test_a_hook_on_attention() -> None:
    transformer = TinyTransformer()
    session = debug_session(transformer, output=io.StringIO(), enable_tensor_inspection=False)
    hook = (
        HookBuilder("attention")
        .trigger(HookTrigger.every_forward())
        .action(HookAction.inspect())
        .layer_patterns(["**.attn"])
        .max_executions(7)
        .build()
    )
    session.hooks.register_hook(hook)
    with session, torch.no_grad():
        for _ in range(2):
            transformer(torch.randint(1, 64, (1, 5)))
    layers = [each.layer for each in session.tensor_inspector.reports]
    assert layers == [f"blocks.{i}.attn" for i in (0, 1, 2, 3, 4, 0, 1)]


def test_profiling_by_name_and_memory_snapshots(model: nn.Module) -> None:
    profiler = layerstep.Profiler()
    profiler.start("forward")
    model(data()[0])
    profiler.stop("forward")
    assert 'Layer "forward"' in str(profiler.report())
    memory = layerstep.MemoryProfiler(model).start()
    memory.snapshot("model_loaded")
    model(data()[0])
    memory.snapshot("forward_complete")
    report = memory.stop()
    assert report.peak_gb() > 0 and len(report.leaks()) == 0


def test_everything_at_once_around_a_loop(model: nn.Module, tmp_path: Path) -> None:
    debugger = create_pytorch_debugger(enable_profiling=True, log_dir=tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with debugger.anomaly_detection(), debugger.profiling(output_file="p.json"), debugger.memory_tracking():
        for _ in range(3):
            found = debugger.debug_training_step(model, *data(), F.cross_entropy, optimizer)
    assert found["anomalies"] == 0
    debugger.check_model_parameters(model)
    assert json.loads(debugger.save_debug_report().read_text())["summary"]["gradient_checks"] == 3
    assert (tmp_path / "p.json").exists()


def test_counts_of_a_loop_that_goes_wrong(model: nn.Module) -> None:
    debugger = TrainingDebugger()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(10):
        x, y = data()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * (1e6 if step == 7 else 1.0)
        loss.backward()
        debugger.monitor_training_step(model, loss, step)
        if step != 7:
            optimizer.step()
    summary = debugger.get_training_summary()
    assert (summary["anomaly_rate"], summary["gradient_explosion_rate"]) == (0.1, 0.1)
    assert summary["loss_anomaly_rate"] == 0.0


def test_a_loss_that_became_nan_is_traced(model: nn.Module) -> None:
    debugger = create_pytorch_debugger()
    x, _ = data()
    with debugger.anomaly_detection() as found:
        loss = torch.sqrt(model(x) - 100).mean()
        debugger.debug_backward_pass(loss)
    assert found.findings[0].op.startswith("sqrt") and found.findings[0].file.endswith("test_examples.py")
