"""Debug sessions: what each field of the configuration does, the report, and a run that stays as it was."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from layerstep import DebugConfig, DebugSession, ModelPerformanceMetrics, Report, UserError, debug_session


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def train(model: nn.Module, steps: int = 10, *, rate: float = 0.05) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), x[:, :3].argmax(dim=1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def watched(steps: int = 10, **fields: Any) -> tuple[DebugSession, Report]:
    model = network()
    session = debug_session(model, output=io.StringIO(), **fields)
    with session:
        train(model, steps)
    return session, session.stop()


def test_a_session_reports_what_it_saw() -> None:
    session, report = watched(25)
    summary = report.summary()
    assert summary["steps"] == 25 and summary["health"] == 100
    assert summary["gradient_health"] == "Healthy"
    assert summary["parameters"] == 8 * 16 + 16 + 16 * 3 + 3
    assert summary["tensors"] == 4 * 25 and summary["tensors_not_finite"] == 0
    assert len(session.gradient_debugger.flow) == 25
    assert not session.is_on


def test_the_run_is_bit_equal() -> None:
    bare, model = network(), network()
    plain = train(bare, 30)
    with debug_session(model, output=io.StringIO(), level="extreme", enable_profiling=True):
        assert train(model, 30) == plain
    for one, other in zip(bare.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_without_tensor_inspection_nothing_is_inspected() -> None:
    session, report = watched(enable_tensor_inspection=False)
    assert len(session.tensor_inspector) == 0 and report.tensors == ()


def test_outputs_are_looked_at_in_brief() -> None:
    """A whole report of a million values takes 60 ms."""
    session, _ = watched(1)
    first = session.tensor_inspector.reports[0]
    assert first.stats is not None and first.stats.count == 16 * 16 and first.stats.std is not None
    assert first.spread is None and "0.output" in str(first)


def test_without_gradient_debugging_no_gradient_is_recorded() -> None:
    session, report = watched(enable_gradient_debugging=False)
    assert len(session.gradient_debugger.flow) == 0 and report.gradients is None


def test_without_diagnostics_there_is_no_doctor() -> None:
    session, report = watched(enable_model_diagnostics=False)
    assert session.model_diagnostics.doctor is None
    assert report.health is None and report.architecture is None and report.performance == ()


def test_limits_hold() -> None:
    session, report = watched(max_tracked_tensors=7, max_gradient_history=4)
    assert len(session.tensor_inspector) == 7
    assert [frame.step for frame in session.gradient_debugger.flow.frames] == [6, 7, 8, 9]
    assert [each.training_step for each in report.performance] == [7, 8, 9, 10]


def test_the_sampling_rate_takes_one_in_so_many() -> None:
    session, report = watched(21, sampling_rate=0.1)
    assert [frame.step for frame in session.gradient_debugger.flow.frames] == [0, 10, 20]
    assert [each.training_step for each in report.performance] == [1, 11, 21]
    assert len(report.tensors) == 3 * 4


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.3, 0.1, 0.01])
def test_a_rate_is_met_over_many_steps(rate: float) -> None:
    config = DebugConfig(sampling_rate=rate)
    taken = sum(config.samples(number) for number in range(1, 10_001))
    assert taken == pytest.approx(10_000 * rate, abs=1)


def test_the_output_folder_gets_the_report(tmp_path: Path) -> None:
    watched(output_dir=tmp_path / "new" / "folder")
    files = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert files == ["log.jsonl", "report.json"]
    data = json.loads((tmp_path / "new" / "folder" / "report.json").read_text())
    assert data["summary"]["steps"] == 10 and len(data["performance"]) == 10


def test_visualization_adds_curves_and_a_page(tmp_path: Path) -> None:
    _, plain = watched()
    _, report = watched(enable_visualization=True, output_dir=tmp_path)
    assert plain.curves == () and report.curves[0].title == "loss"
    assert len(report.curves[0].values[0]) == 10
    assert "largest gradient norm" in (tmp_path / "report.html").read_text()


def test_profiling_times_the_modules() -> None:
    _, plain = watched()
    _, report = watched(enable_profiling=True)
    assert plain.profile is None
    assert report.profile is not None and report.profile.layer("0").calls > 0


@pytest.mark.parametrize(("level", "share"), [("basic", "2%"), ("advanced", "10%"), ("extreme", "25%")])
def test_the_level_is_the_budget_of_the_doctor(level: str, share: str) -> None:
    model = network()
    with debug_session(model, output=io.StringIO(), level=level) as session:
        train(model, 2)
        doctor = session.model_diagnostics.doctor
        assert doctor is not None and f"may take {share}" in doctor.cost()[0]


@pytest.mark.parametrize(("thresholds", "health"), [("layerstep", "Healthy"), ("seed-email", "Critical")])
def test_the_thresholds_judge_the_gradients(thresholds: str, health: str) -> None:
    model = network()
    with debug_session(model, output=io.StringIO(), thresholds=thresholds) as session:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.ones(4, 8)) * 10).square().sum().backward()
            optimizer.step()
    assert session.stop().summary()["gradient_health"] == health


def test_every_field_of_the_configuration_is_tested_here() -> None:
    """Each is a keyword of a session somewhere in this file."""
    text = Path(__file__).read_text()
    for field in dataclasses.fields(DebugConfig):
        assert f"{field.name}=" in text, field.name


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"sampling_rate": 1.5}, "sampling_rate"),
        ({"max_tracked_tensors": 0}, "max_tracked_tensors"),
        ({"level": "deep"}, "deep"),
        ({"thresholds": "default"}, "autotrainer"),
    ],
)
def test_a_wrong_field_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        DebugConfig(**fields)
    assert words in f"{caught.value} {caught.value.hint}"


def test_a_session_without_a_model_finds_it() -> None:
    model, session = network(), DebugSession(output=io.StringIO())
    session.start()
    train(model, 5)
    report = session.stop()
    assert report.steps == 5 and report.tensors
    assert report.gradients is not None and len(session.gradient_debugger.flow) == 5


def test_findings_are_shown_when_they_arise_and_reported() -> None:
    model, screen = network(), io.StringIO()
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with debug_session(model, output=screen) as session:
        for _ in range(30):  # no zero_grad
            F.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 3, (16,))).backward()
            optimizer.step()
        assert "stale-gradients" in screen.getvalue()
    report = session.stop()
    assert "stale-gradients" in [each.rule for each in report.findings]
    assert report.summary()["health"] < 100 and "stale-gradients" in report.to_json()


def test_what_is_recorded_by_hand_is_in_the_report() -> None:
    model = network()
    session = debug_session(model, output=io.StringIO())
    session.start()
    number = session.tensor_inspector.inspect_tensor(
        torch.tensor([1.0, torch.nan]), "mine", "layer", "forward"
    )
    assert session.tensor_inspector.get_tensor_info(number).stats.nan == 1  # type: ignore[union-attr]
    session.gradient_debugger.record_gradient_flow("layer", [0.01, 0.02])
    session.model_diagnostics.record_performance(ModelPerformanceMetrics(training_step=100, loss=0.5))
    found = session.model_diagnostics.record_architecture(args=(torch.randn(2, 8),))
    assert found.flops and found.uncalled == ()
    session.profiler.start_timer("load")
    assert session.profiler.end_timer("load") >= 0
    summary = session.stop().summary()
    assert summary["tensors_not_finite"] == 1 and summary["last_loss"] == 0.5


def test_a_report_is_saved_as_its_name_says(tmp_path: Path) -> None:
    _, report = watched()
    report.save(tmp_path / "deep" / "report.json")
    assert json.loads((tmp_path / "deep" / "report.json").read_text()) == json.loads(report.to_json())
    assert "<html" in report.save(tmp_path / "report.html").read_text()
    with pytest.raises(UserError):
        report.save(tmp_path / "report.pdf")


def test_a_report_on_nan_is_still_json() -> None:
    model = network()
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    with debug_session(model, output=io.StringIO()) as session:
        train(model, 3)
    data = json.loads(session.stop().to_json(), parse_constant=lambda word: pytest.fail(word))
    assert data["summary"]["tensors_not_finite"] > 0 and data["summary"]["last_loss"] == "nan"


def test_a_folder_that_cannot_be_made_is_no_reason_to_die(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    model, screen = network(), io.StringIO()
    with debug_session(model, output=screen, output_dir=tmp_path / "file" / "folder") as session:
        train(model, 2)
    assert session.stop().steps == 2 and "the report is not written" in screen.getvalue()


def test_switched_off_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSTEP", "0")
    session, report = watched()
    assert report.steps == 0 and len(session.tensor_inspector) == 0


def test_an_exception_in_the_block_takes_everything_off() -> None:
    model = network()
    with pytest.raises(ZeroDivisionError), debug_session(model, output=io.StringIO()):
        model(torch.randn(2, 8))
        _ = 1 / 0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_session_can_start_again() -> None:
    model = network()
    session = debug_session(model, output=io.StringIO())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for steps in (3, 2):
        session.start()
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        report = session.stop()
    assert len(report.tensors) == 4 * 5 and len(report.performance) == 5
    assert len(session.gradient_debugger.flow) == 5
    assert session.stop() is report


def test_the_log_grows_while_the_training_runs(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with debug_session(model, output=io.StringIO(), output_dir=tmp_path):
        for _ in range(20):  # no zero_grad
            F.cross_entropy(model(torch.randn(16, 8)), torch.randint(0, 3, (16,))).backward()
            optimizer.step()
        lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert lines[0]["kind"] == "begin"
        assert "stale-gradients" in [line["name"] for line in lines if line["kind"] == "finding"]
    last = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert last["kind"] == "end" and last["findings"][0]["name"] == "stale-gradients"


KILLED = """\
import sys, torch
from torch import nn
from layerstep import debug_session
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
with debug_session(model, output_dir=sys.argv[1], enable_tensor_inspection=False):
    while True:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.randint(0, 3, (4,))).backward()
        optimizer.step()
"""


def test_a_killed_session_leaves_a_log_up_to_its_last_second(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    run = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 100
    while time.monotonic() < end and (not log.exists() or log.read_text().count('"step"') < 8):
        time.sleep(0.1)
    run.send_signal(signal.SIGKILL)
    killed = datetime.now(UTC)
    run.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["kind"] for line in lines][:2] == ["begin", "step"]
    assert abs((killed - datetime.fromisoformat(lines[-1]["time"])).total_seconds()) < 1
