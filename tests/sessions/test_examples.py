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
    debug_context,
    debug_session,
    debug_training_session,
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


def test_gradients_of_a_loop_recorded_layer_by_layer(model: nn.Module) -> None:
    session = debug_session(model, output=io.StringIO())
    for _ in range(3):
        model.zero_grad()
        F.cross_entropy(model(data()[0]), data()[1]).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            session.gradient_debugger.record_gradient_flow(name, parameter.grad)
    analysis = session.gradient_debugger.analyze_gradient_flow()
    assert analysis.total_steps == 3 and analysis.overall_health == "Healthy"
    picture = session.gradient_debugger.flow.to_ascii_animation()
    assert [line.split()[0] for line in picture.splitlines()[3:]] == sorted(dict(model.named_parameters()))


def test_timers_and_layers_measured_elsewhere(model: nn.Module) -> None:
    profiler = debug_session(model, output=io.StringIO()).profiler
    profiler.start_timer("layer_forward")
    model(data()[0])
    assert profiler.end_timer("layer_forward") > 0
    profiler.record_layer_execution("block", 0.25, kind="Block", backward=0.5, parameters=7)
    block = profiler.report().layer("block")
    assert (block.forward, block.backward, block.parameters) == (0.25, 0.5, 7)


def test_the_architecture_and_the_metrics_of_a_run(model: nn.Module) -> None:
    diagnostics = debug_session(model, output=io.StringIO()).model_diagnostics
    found = diagnostics.record_architecture()
    assert found.parameters == found.trainable == sum(p.numel() for p in model.parameters())
    diagnostics.record_performance(
        ModelPerformanceMetrics(training_step=100, loss=0.5, accuracy=0.85, learning_rate=1e-4)
    )
    assert diagnostics.performance[-1].accuracy == 0.85


def test_a_console_stops_at_a_layer_and_shows_it() -> None:
    torch.manual_seed(0)
    transformer, screen = TinyTransformer(), io.StringIO()
    lines = [
        "continue",
        "inspect blocks.0.attn.output",
        "stats blocks.0.attn.output",
        "attention",
        "continue",
    ]
    console = layerstep.DebugConsole(transformer, commands=lines, output=screen)
    console.breakpoint("blocks.0.attn")
    console.run(torch.randint(1, 64, (1, 5)))
    text = screen.getvalue()
    assert "blocks.0.attn  done" in text and "percentiles" in text and "✗" not in text


def test_distributions_of_weights_and_activations(model: nn.Module) -> None:
    screen = io.StringIO()
    lines = ["break 0", "continue", "hist out", "heatmap out", "activations", "weights 0", "continue"]
    layerstep.DebugConsole(model, commands=lines, output=screen).run(data()[0])
    assert "✗" not in screen.getvalue() and "0.weight" in screen.getvalue()


def test_gradients_that_vanish_are_named_by_an_analyzer() -> None:
    torch.manual_seed(0)
    layers = [each for _ in range(12) for each in (nn.Linear(8, 8), nn.Sigmoid())]
    deep = nn.Sequential(*layers, nn.Linear(8, 3))
    analyzer = layerstep.GradientDebugger(deep)
    F.cross_entropy(deep(data()[0]), data()[1]).backward()
    analyzer.record_step(0)
    assert "0.weight" in analyzer.vanishing_layers() and analyzer.exploding_layers() == ()


def test_an_output_is_checked_for_stability(model: nn.Module) -> None:
    checker = layerstep.StabilityChecker()
    checker.check_tensor(model(data()[0]), "fine")
    checker.check_tensor(torch.tensor([1.0, torch.nan]), "broken")
    assert [(issue.layer, str(issue.kind)) for issue in checker.get_issues()] == [("broken", "nan")]


def test_a_whole_training_in_one_block(model: nn.Module, tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with debug_training_session(model, enable_profiling=True, log_dir=tmp_path) as debugger:
        for _ in range(3):
            optimizer.zero_grad()
            out = debugger.debug_forward_pass(model, data()[0])
            debugger.debug_backward_pass(F.cross_entropy(out, data()[1]))
            debugger.check_gradients(model, gradient_threshold=1.0)
            optimizer.step()
    saved = json.loads((tmp_path / "debug_report.json").read_text())
    assert saved["summary"]["events"]["forward"] == 3 and saved["summary"]["total_anomalies"] == 0
    assert [layer["name"] for layer in saved["layers"]][:3] == ["0", "1", "2"]
    assert all(layer["seconds"] > 0 for layer in saved["layers"])
    debugger.clear_debug_data()
    assert debugger.get_debug_summary()["events"] == {}


def test_light_monitoring(model: nn.Module) -> None:
    debugger = create_pytorch_debugger(debug_mode=False, enable_anomaly_detection=False)
    with debugger.anomaly_detection(), debugger.profiling(), debugger.memory_tracking():
        F.cross_entropy(model(data()[0]), data()[1]).backward()
        assert debugger.check_gradients(model) > 0
    summary = debugger.get_debug_summary()
    assert (summary["profiles"], summary["memory_reports"], summary["gradient_checks"]) == (0, 1, 1)


def test_an_error_of_the_loop_is_noted(model: nn.Module) -> None:
    debugger = create_pytorch_debugger()
    try:
        with debugger.anomaly_detection():
            model(torch.zeros(1, 3))
    except RuntimeError as error:
        debugger.add_event("custom_error", str(error).partition("\n")[0])
    assert "cannot be multiplied" in debugger.events[-1].message


@pytest.mark.parametrize("level", ["basic", "advanced", "extreme"])
def test_a_context_at_each_level(model: nn.Module, level: str) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with debug_context(level) as debugger:
        for _ in range(25):
            optimizer.zero_grad()
            x, y = data()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert debugger.get_debug_summary()["total_anomalies"] == 0


def test_a_loss_gone_wrong_is_looked_into(model: nn.Module) -> None:
    debugger = create_pytorch_debugger()
    x, y = data()
    loss = F.cross_entropy(model(x * torch.inf), y)
    assert not debugger.analyze_tensor(loss, "loss").is_finite
    assert debugger.analyze_tensor(x, "inputs").is_finite
    loss.backward()
    assert debugger.check_gradient_explosion(model, threshold=10.0)
    assert all(each.is_finite for each in debugger.analyze_model_parameters(model).values())
    assert debugger.profile_memory_usage(model).total > 0
