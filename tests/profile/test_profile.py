"""`profile`: what is timed, what adds up, what it says, and the library over it. No test asserts a speed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import layerstep
from layerstep import DebugConsole, Profiler, UserError
from layerstep.demo.model import TinyTransformer
from layerstep.profile.profiling import Profile
from layerstep.profile.state import state_of
from layerstep.render.screen import to_text
from layerstep.views import Group, Notice, Table
from play import Clock, timed_by
from zoo import console_on, taps_on


@pytest.fixture(autouse=True)
def _clock() -> Iterator[None]:
    """Sleeping takes its time by a clock that no load disturbs, and none of the tests'."""
    with timed_by(Clock(tick=1_000)):
        yield


class Sleepy(nn.Module):
    """Sleeps in the forward, and as long as it is told in the backward."""

    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.times = forward, backward

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.times[0])
        return _Sleep.apply(x, self.times[1])


class Squared(nn.Module):
    """Saves a tensor for the backward, so that a checkpoint runs it again."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.02)
        return x * x


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds  # type: ignore[attr-defined]
        return x * 1

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)  # type: ignore[attr-defined]
        return grad, None


class Residual(nn.Module):
    """Two branches and work of its own between: the order of the backward is not that of the modules."""

    def __init__(self) -> None:
        super().__init__()
        self.left = Sleepy(0.01, 0.03)
        self.right = Sleepy(0.02, 0.01)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return x + self.left(x) * self.right(x * 2)


class SlowStep(torch.optim.SGD):
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        time.sleep(0.02)
        super().step()


def train(model: nn.Module, steps: int, *, wait: float = 0.0, x: Tensor | None = None) -> None:
    optimizer = SlowStep(model.parameters(), lr=0.01)
    for _ in range(steps):
        time.sleep(wait)
        out = model(torch.ones(3, 4) if x is None else x)
        optimizer.zero_grad()
        time.sleep(0.005)
        out.sum().backward()
        optimizer.step()


def measured(model: nn.Module, run: object) -> object:
    console, _ = console_on(model, [])
    with console:
        console.execute("profile on")
        run()  # type: ignore[operator]
        console.execute("profile off")
        return state_of(console.session).measured()


def test_time_goes_to_the_module_that_took_it_forward_and_backward() -> None:
    model = Residual()
    found = measured(model, lambda: train(model, 5, wait=0.04))
    rows = {row.path: row for row in found.rows}  # type: ignore[attr-defined]
    least = {
        ("left", "forward"): 0.01,
        ("left", "backward"): 0.03,
        ("right", "forward"): 0.02,
        ("right", "backward"): 0.01,
        ("data", "forward"): 0.04,
        ("optimizer", "forward"): 0.02,
        ("loss", "forward"): 0.005,
    }
    for (path, way), seconds in least.items():
        assert min(getattr(rows[path], way)) >= 0.95 * seconds, (path, way)
    root = rows["Residual"]
    assert min(root.total_forward) >= 0.028 and min(root.total_backward) >= 0.038
    assert all(own < total for own, total in zip(root.own, root.total, strict=True))
    assert rows["linear"].calls == [1, 1, 1]


def test_the_parts_add_up_to_the_step() -> None:
    model = TinyTransformer()
    tokens = torch.randint(1, 64, (2, 12))
    found = measured(model, lambda: train(model, 6, x=tokens))
    for number, step in enumerate(found.times):  # type: ignore[attr-defined]
        parts = sum(row.own[number] for row in found.rows)  # type: ignore[attr-defined]
        assert parts + step.tool / 1e9 == pytest.approx((step.end - step.begin) / 1e9, rel=0.001)
    assert len(found.steps) == 4  # type: ignore[attr-defined]
    assert found.is_training and min(found.tokens) > 0  # type: ignore[attr-defined]


def test_a_checkpointed_module_counts_once_and_its_second_run_is_backward() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Squared()
            self.first = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, self.first(x), use_reentrant=False)  # type: ignore[no-any-return]

    model = Checkpointed()
    found = measured(model, lambda: train(model, 4))
    row = found.row("inner")  # type: ignore[attr-defined]
    assert row.calls == [1, 1]
    assert min(row.forward) >= 0.019 and min(row.backward) >= 0.019


def test_forwards_are_steps_where_nothing_is_trained() -> None:
    model = nn.Sequential(Sleepy(0.01, 0), nn.Linear(4, 4))

    def run() -> None:
        for _ in range(5):
            with torch.no_grad():
                model(torch.ones(3, 4))
            time.sleep(0.02)

    found = measured(model, run)
    assert not found.is_training and len(found.steps) == 3  # type: ignore[attr-defined]
    assert min(found.row("0").forward) >= 0.0095  # type: ignore[attr-defined]
    assert found.row("between forwards").own[0] >= 0.019  # type: ignore[attr-defined]
    assert found.row("loss") is None  # type: ignore[attr-defined]


def test_accumulated_gradients_are_one_step() -> None:
    model = nn.Linear(4, 4)
    console, _ = console_on(model, [])
    with console:
        console.execute("profile 2")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(12):
            model(torch.ones(3, 4)).sum().backward()
            if step % 3 == 2:
                optimizer.step()
        found = state_of(console.session).measured()
    assert len(found.steps) == 2 and found.is_training
    assert [row.calls for row in found.rows if row.kind == "Linear"] == [[3, 3]]
    assert all(step.samples == 9 for step in found.times)


def test_flops_are_those_of_torchs_counter() -> None:
    model = TinyTransformer().eval()
    tokens = torch.randint(1, 64, (2, 12))

    def run() -> None:
        for _ in range(4):
            with torch.no_grad():
                model(tokens)

    found = measured(model, run)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(tokens)
    root = found.row("TinyTransformer")  # type: ignore[attr-defined]
    assert root.flops == counter.get_total_flops() > 0
    assert sum(row.own_flops for row in found.rows) == root.flops  # type: ignore[attr-defined]
    by_module = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    assert found.row("blocks.1.attn").flops == by_module["TinyTransformer.blocks.1.attn"]  # type: ignore[attr-defined]


def test_a_step_with_a_stop_in_it_does_not_count() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    lines = ["profile on", "until forward 4", "break 0", "continue", "delete 1", "continue"]
    console, seen = console_on(model, lines)
    with console:
        train(model, 8)
        profile = console.session.instruments.get(Profile)
        assert profile.left_out == 1
        assert len(profile.steps) == 8 - 2 - 1, seen.text


def test_n_steps_end_by_themselves_and_show_what_was_asked_for() -> None:
    model = nn.Linear(4, 4)
    console, seen = console_on(model, ["profile 2 --report --advice"])
    with console:
        train(model, 5)
        assert not taps_on(model)
        assert "2 training steps timed" in seen.text
        assert "own ms" in seen.text and "optimizer" in seen.text


def _answers(lines: list[str], model: nn.Module, steps: int = 5) -> dict[str, str]:
    console, _ = console_on(model, [])
    found = {}
    with console:
        console.execute("profile 3")
        train(model, steps)
        for line in lines:
            view = console.execute(line)
            assert not (isinstance(view, Notice) and view.level == "error"), view
            found[line] = to_text(view)
            assert all(len(each) <= 80 for each in found[line].splitlines()), line
    return found


def test_reports_have_their_rows_and_words() -> None:
    found = _answers(
        [
            "profile",
            "profile report --wide --sort params",
            "profile report --by type",
            "profile report --by op",
            "profile report --tree",
            "profile report --flame",
            "info cost",
        ],
        Residual(),
    )
    for row in ("left", "right", "linear", "optimizer", "loss", "data", "samples/s", "taken out"):
        assert row in found["profile"]
    assert found["profile"].index("\nleft") < found["profile"].index("\nlinear"), "the slowest first"
    wide = found["profile report --wide --sort params"]
    assert "params" in wide and wide.index("\nlinear") < wide.index("\nleft")
    assert "Sleepy" in found["profile report --by type"]
    assert "F.linear" in found["profile report --by op"]
    tree = found["profile report --tree"]
    assert "◆ hot" in tree.splitlines()[4] and "├── left  Sleepy  ◆ hot" in tree
    assert "█" in found["profile report --flame"] and "  left" in found["profile report --flame"]
    assert "nothing is installed" in found["info cost"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("profile sideways", "no 'sideways'"),
        ("profile 0", "N takes 1 to 100,000"),
        ("profile 3 4", "too much"),
        ("profile report --by colour", "unknown"),
        ("profile report --sort size", "unknown"),
        ("profile report --up", "no option"),
        ("profile save", "needs a name"),
        ("profile save x", "nothing is timed"),
        ("profile compare a", "needs A and B"),
        ("profile compare a b", "no profile is saved"),
        ("profile compare a.json b.json", "cannot read"),
        ("profile ops x", "no number"),
        ("profile on now", "too much"),
        ("export a.trace.json", "nothing is timed"),
    ],
)
def test_mistakes_are_told_in_a_line(line: str, says: str) -> None:
    view = DebugConsole(nn.Linear(2, 2)).execute(line)
    assert isinstance(view, Notice) and view.level == "error" and says in view.text, view


def test_kernels_are_torchs_own_profilers() -> None:
    model = nn.Linear(4, 4)
    console, seen = console_on(model, ["profile ops 2"])
    with console:
        train(model, 4)
        view = console.execute("profile ops")
        assert isinstance(view, Table)
        assert any("mm" in row[0] for row in view.rows), view
        assert "mean of 2" in view.note
        assert not taps_on(model) and not torch.autograd._profiler_enabled()
        console.execute("profile on")
        refused = console.execute("profile ops 1")
        assert isinstance(refused, Notice) and "profile is on" in refused.text, seen.text


def test_saved_profiles_are_compared(tmp_path: Path) -> None:
    model = Sleepy(0.01, 0)
    console, _ = console_on(nn.Sequential(model, nn.Linear(4, 4)), [])
    with console:
        root = console.session.run.models.main.root  # type: ignore[union-attr]
        for name, seconds in (("a", 0.02), ("b", 0.06)):
            model.times = seconds, 0.0
            console.execute("profile 10")
            for _ in range(13):
                root(torch.ones(2, 4))  # type: ignore[misc]
            console.execute("profile off")
            console.execute(f"profile save {tmp_path}/{name}.json")
        view = console.execute(f"profile compare {tmp_path}/a.json {tmp_path}/b.json")
    text = to_text(view)
    assert "slower" in text and "no real difference" not in text, text
    assert [row[0] for row in view.rows if row[0] == "0"], "the module that sleeps longer"  # type: ignore[union-attr]


def test_the_trace_is_in_the_form_of_chrome(tmp_path: Path) -> None:
    model = Residual()
    console, _ = console_on(model, ["profile 3"])
    with console:
        train(model, 5)
        console.execute(f"export {tmp_path}/run.trace.json")
        view = console.execute(f"export {tmp_path}/trace.json")
        assert isinstance(view, Notice) and view.level == "good"
    found = json.loads((tmp_path / "run.trace.json").read_text())
    events = found["traceEvents"]
    assert found == json.loads((tmp_path / "trace.json").read_text())
    spans = [event for event in events if event["ph"] == "X"]
    assert all({"name", "cat", "ts", "dur", "pid", "tid"} <= set(event) for event in spans)
    names = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert {"steps", "outside the model", "depth 0", "depth 1"} == set(names)
    left = [event for event in spans if event["name"] == "left"]
    assert {event["cat"] for event in left} == {"forward", "backward"} and len(left) == 6
    assert {event["tid"] for event in left} == {names["depth 1"]}
    steps = [event for event in spans if event["cat"] == "step"]
    for event in left:
        assert any(s["ts"] <= event["ts"] and event["ts"] + event["dur"] <= s["ts"] + s["dur"] for s in steps)


def test_stops_are_marks_in_the_trace(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    lines = ["profile on", "until forward 4", "break 0", "continue", "delete 1", "continue"]
    console, _ = console_on(model, lines)
    with console:
        train(model, 8)
        console.execute(f"export {tmp_path}/a.trace.json")
    events = json.loads((tmp_path / "a.trace.json").read_text())["traceEvents"]
    marks = [event for event in events if event["ph"] == "i"]
    assert any("0" in mark["name"] and "Linear" in mark["name"] for mark in marks), marks


def test_the_library_times_models_and_pieces(tmp_path: Path) -> None:
    model = Residual()
    with layerstep.profiling(model, output_file=tmp_path / "a.trace.json") as profiler:
        train(model, 4)
    assert not taps_on(model)
    report = profiler.report()
    assert report.steps == 3 and report.step_seconds > 0.07
    assert report.layer("left").backward >= 0.028 and report.layer("left").kind == "Sleepy"
    assert report.samples_per_second == pytest.approx(3 / report.step_seconds, rel=0.2)
    assert 0.9 < sum(layer.share for layer in report.layers) < 1.1
    assert 'Layer "left"' in str(report)
    assert json.loads((tmp_path / "a.trace.json").read_text())["traceEvents"]
    profiler.save(tmp_path / "a.json")
    with pytest.raises(UserError):
        report.layer("nosuch")


def test_timers_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    timers = SimpleNamespace(perf_counter=lambda: clock() / 1e9)
    monkeypatch.setattr("layerstep.profile.profiler.time", timers)
    profiler = Profiler()
    profiler.start_timer("load")
    clock.sleep(0.01)
    assert profiler.end_timer("load") >= 0.0095
    profiler.start("again")
    assert profiler.stop("again") is not None
    profiler.record_layer_execution("block", 0.5, kind="Block", backward=1.0, parameters=7)
    report = profiler.report()
    block = report.layer("block")
    assert (block.own, block.kind, block.parameters, block.calls) == (1.5, "Block", 7, 1)
    assert block.share > 0.9 and report.steps == 0
    with pytest.raises(UserError, match="no timer"):
        profiler.end_timer("load")
    with pytest.raises(UserError, match="negative"):
        profiler.record_layer_execution("block", -1.0)


def test_without_a_model_every_model_is_found() -> None:
    model = nn.Linear(4, 4)
    with layerstep.profiling() as profiler:
        train(model, 4)
    assert any(layer.kind == "Linear" for layer in profiler.report().layers)


def test_switched_off_it_is_inert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSTEP", "0")
    model = nn.Linear(4, 4)
    with layerstep.profiling(model) as profiler:
        assert not taps_on(model)
        train(model, 2)
    assert profiler.report().steps == 0


def test_views_are_plain() -> None:
    found = _answers(["profile advice"], Residual())
    assert found["profile advice"]
    assert isinstance(Group(()), Group)
