"""The memory profiler as a library."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from layerstep import MemoryProfiler, UserError, memory_tracking
from layerstep.memory.profiler import MemoryReport
from zoo import hook_count

pytestmark = [pytest.mark.own_process, pytest.mark.usefixtures("only_their_own")]


def train(model: nn.Module, steps: int, *, batch: int = 4, keep: list[torch.Tensor] | None = None) -> object:
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        loss = model(torch.randn(batch, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if keep is not None:
            keep.append(model(torch.randn(batch, 8)).mean())
    return optimizer


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))


PARAMETERS = 4 * (8 * 64 + 64 + 64 * 2 + 2)


def test_a_report_has_the_peak_and_the_snapshots() -> None:
    model = net()
    profiler = MemoryProfiler(model)
    profiler.start()
    loaded = profiler.snapshot("loaded")
    optimizer = train(model, 3)
    trained = profiler.snapshot("trained")
    report = profiler.stop()
    del optimizer
    assert loaded is not None and trained is not None
    assert loaded.kept == PARAMETERS
    steps = 4 * 4  # Adam counts its steps in a tensor a parameter
    assert trained.kept == 4 * PARAMETERS + steps
    assert report.difference("loaded", "trained") >= 3 * PARAMETERS
    assert len(report.steps) == 3 and report.peak > 4 * PARAMETERS
    assert report.peak_gb() == report.peak / 1e9
    assert report.leaks() == [] and "no leaks" in str(report)
    assert report is profiler.report() or report == profiler.report()
    assert not hook_count(model)


def test_what_autograd_saved_by_module_and_a_larger_batch() -> None:
    model = net()
    with memory_tracking(model) as profiler:
        train(model, 2, batch=16)
    report = profiler.report()
    assert report.saved()["1"] == 16 * 64 * 4
    expected = report.forecast()
    assert expected is not None and expected.batch == 32
    assert report.steps[-1].peak.bytes < expected.bytes < 2 * report.steps[-1].peak.bytes
    assert "assumed" in expected.basis


def test_batches_of_different_sizes_say_how_it_grows() -> None:
    model = net()
    with memory_tracking(model) as profiler:
        train(model, 2, batch=64)
        train(model, 2, batch=128)
    expected = profiler.report().forecast()
    assert (
        expected is not None
        and expected.batch == 256
        and expected.basis == "measured with batches of 64, 128"
    )
    with memory_tracking(model) as second:
        train(model, 3, batch=256)
    measured = second.report().steps[-1].peak.bytes
    assert expected.bytes == pytest.approx(measured, rel=0.1)


def test_a_leak_is_reported() -> None:
    model = net()
    kept: list[torch.Tensor] = []
    with memory_tracking(model) as profiler:
        train(model, 8, keep=kept)
        (leak,) = profiler.report().leaks()
    assert leak.nodes and leak.graph_bytes
    assert profiler.report().leaks() and "leak: " in str(profiler.report())


def test_models_are_found_as_they_are_called() -> None:
    with memory_tracking() as profiler:
        train(net(), 2)
    assert profiler.report().steps[-1].saved.bytes > 0


def test_an_exception_takes_everything_off() -> None:
    model = net()
    with pytest.raises(ZeroDivisionError), memory_tracking(model) as profiler:
        train(model, 1)
        raise ZeroDivisionError
    assert not hook_count(model) and not profiler.is_on
    assert len(profiler.report().steps) == 1


def test_inert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSTEP", "0")
    with memory_tracking(net()) as profiler:
        assert profiler.snapshot("nothing") is None
    assert profiler.report() == MemoryReport() and profiler.report().peak == 0


def test_an_unknown_snapshot() -> None:
    with pytest.raises(UserError, match="no snapshot 'one'"):
        MemoryReport().difference("one", "other")
