"""Catchpoints beside the planted cases: what they leave out, what they say where nothing is found, `why`."""

from __future__ import annotations

import io
import math
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layerstep
import quick_python
from layerstep import DebugConsole
from layerstep.nonfinite.catching import search_of
from nan_cases import LogOfZero, Net, SlopeOfSqrt


def run(model: nn.Module, commands: list[str], forward: Any) -> tuple[str, DebugConsole]:
    screen = io.StringIO()
    console = DebugConsole(model, commands=[*commands, *["continue"] * 20], output=screen)
    with console:
        forward()
    return screen.getvalue(), console


class Toggle(Net):
    """Bad once, and not again: a second run finds nothing."""

    calls = 0

    def middle(self, h: Tensor) -> Tensor:
        Toggle.calls += 1
        return h * (math.nan if Toggle.calls == 1 else 1)


def test_what_does_not_come_again_is_said_and_the_check_of_every_op_offered() -> None:
    Toggle.calls = 0
    model = Toggle()
    screen, _ = run(model, ["catch nan", "continue", "why"], lambda: model(model.data(1)))
    assert "it is not reproducible" in screen
    assert "--every-op" in screen


def test_the_check_of_every_op_finds_what_does_not_come_again() -> None:
    Toggle.calls = 0
    model = Toggle()
    screen, console = run(model, ["catch nan --every-op", "continue"], lambda: model(model.data(1)))
    found = search_of(console.session).found
    assert found is not None and found.op == "mul", screen
    assert found.place.text.startswith("return h * (math.nan")


def test_the_check_of_every_op_stops_in_the_backward() -> None:
    model = SlopeOfSqrt()
    screen, console = run(
        model,
        ["catch nonfinite --every-op", "continue"],
        lambda: model.loss(model(model.data(1))).backward(),
    )
    found = search_of(console.session).found
    assert found is not None and "SqrtBackward0" in found.detail, screen


def test_a_muted_module_gives_no_alarm() -> None:
    model = nn.Sequential(nn.Linear(4, 4), LogOfZero())
    screen, console = run(model, ["mute 1", "catch nonfinite", "continue"], lambda: model(torch.randn(2, 4)))
    assert search_of(console.session).passed_over == 1
    assert "born in" not in screen.partition("continue")[2]
    assert all(point.hits == 0 for point in console.session.points)


def test_in_where_looks_only_there() -> None:
    model = nn.Sequential(LogOfZero(), nn.Linear(2, 2))
    screen, _ = run(model, ["catch nan in 1", "continue"], lambda: model(torch.randn(2, 4)))
    assert "born in log" in screen and "the output of 1 has" in screen
    healthy = nn.Sequential(nn.Linear(4, 4), LogOfZero())
    screen, _ = run(healthy, ["catch nan in 0", "continue"], lambda: healthy(torch.randn(2, 4)))
    assert "born" not in screen


def test_only_inf_is_caught_by_inf_and_only_nan_by_nan() -> None:
    class Inf(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.first(x).exp() * 1e38 * 10

    model = Inf()
    assert "born" not in run(model, ["catch nan", "continue"], lambda: model(model.data(1)))[0]
    assert "born in mul" in run(model, ["catch inf", "continue"], lambda: model(model.data(1)))[0]


def test_a_parameter_after_a_step() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e30)

    def train() -> None:
        model(torch.full((1, 2), 1e20)).sum().backward()
        optimizer.step()

    screen, console = run(model, ["catch nonfinite param", "continue"], train)
    found = search_of(console.session).found
    assert found is not None and found.part == "optimizer step"
    assert "SGD has left Linear.weight with 2 -inf of 2" in screen
    assert "its gradient is finite" in screen
    assert found.place.text == "optimizer.step()"


def test_a_grad_scaler_is_expected_to_overflow() -> None:
    model = SlopeOfSqrt()
    scaler = torch.amp.GradScaler("cpu")

    def train() -> None:
        scaler.scale(model.loss(model(model.data(1)))).backward()

    screen, console = run(model, ["catch nonfinite", "continue"], train)
    assert "a GradScaler is in use" in screen
    assert all(point.hits == 0 for point in console.session.points)


def test_ignore_and_tbreak_like_counting_hold_for_catchpoints() -> None:
    model = LogOfZero()
    screen, console = run(
        model,
        ["catch nonfinite", "ignore 1 2", "continue"],
        lambda: [model(model.data(n)) for n in range(4)],
    )
    assert screen.count("born in log") == 2
    assert next(iter(console.session.points)).hits == 4


def test_the_stop_is_in_the_second_run_and_its_locals_are_there() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = LogOfZero()

        def forward(self, x: Tensor) -> Tensor:
            doubled = x * 2
            return self.inner(doubled)

    model = Deep()
    screen, _ = run(
        model,
        [
            "catch nonfinite",
            "continue",
            "print h.shape",
            "print (h * 2).requires_grad",
            "up",
            "print mod.training",
            "print doubled.shape",
        ],
        lambda: model(torch.randn(3, 4)),
    )
    assert screen.count("torch.Size([3, 4])") == 2, screen
    assert screen.count("True") == 2, screen


def test_the_run_goes_on_from_its_own_place_after_a_stop() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), LogOfZero(), nn.Dropout(0.5))
    x = torch.randn(8, 4)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    bare = model(x)
    after = {name: value.clone() for name, value in model.state_dict().items()}
    stream = torch.get_rng_state()
    model.load_state_dict(state)
    torch.manual_seed(5)
    outputs = []
    screen, _ = run(model, ["catch nonfinite", "continue"], lambda: outputs.append(model(x)))
    assert "born in" in screen
    assert torch.equal(outputs[0].nan_to_num(), bare.nan_to_num())
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in after.items())
    assert torch.equal(torch.get_rng_state(), stream)


def test_hooks_of_the_user_are_not_called_in_the_second_run() -> None:
    model = LogOfZero()
    calls = []
    model.first.register_forward_hook(lambda *_: calls.append("forward"))
    run(model, ["catch nonfinite", "continue"], lambda: model(model.data(1)))
    assert calls == ["forward"]


def test_gradients_are_those_of_one_backward_after_a_stop() -> None:
    seen = []

    def gradients(commands: list[str]) -> list[Tensor]:
        model = SlopeOfSqrt()
        model.first.weight.register_hook(lambda g: seen.append(1))
        run(model, commands, lambda: model.loss(model(model.data(1))).backward())
        return [p.grad.nan_to_num() for p in model.parameters() if p.grad is not None]

    bare = gradients(["continue"])
    caught = gradients(["catch nonfinite", "continue"])
    assert all(torch.equal(a, b) for a, b in zip(bare, caught, strict=True))
    assert len(seen) == 2


def test_why_without_a_catchpoint_runs_on_the_inputs_of_now() -> None:
    model = LogOfZero()
    screen, _ = run(model, ["break last", "continue", "why inp", "why"], lambda: model(model.data(1)))
    assert screen.count("inf born in log") == 2
    assert "its beginning was not kept" in screen


def test_why_says_that_a_value_is_finite() -> None:
    model = LogOfZero()
    screen, _ = run(model, ["break first", "continue", "why out", "why name"], lambda: model(model.data(1)))
    assert "out is finite" in screen
    assert "name holds no tensor" in screen


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("catch", "catch what?"),
        ("catch nun", "catch has no 'nun'; did you mean nan?"),
        ("catch nan in", "in needs WHERE"),
        ("catch nan sideways", "no side 'sideways'; there is forward, backward, param"),
        ("catch slow", "slow needs milliseconds"),
        ("catch slow soon", "slow needs milliseconds, not 'soon'"),
        ("catch nan --fast", "no option --fast"),
        ("catch shape first last", "'last' is too much"),
        ("mute nowhere", "nowhere"),
        ("why shape", "nothing was raised here"),
    ],
)
def test_a_mistake_gets_one_line(line: str, answer: str) -> None:
    model = LogOfZero()
    screen, _ = run(model, ["break first", "continue", line], lambda: model(model.data(1)))
    assert answer in " ".join(screen.split())


class Wobbling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        h = self.layer(x)
        if self.n == 2:
            h = h[:, :2]
        if self.n == 3:
            h = h.detach()
        return h.double() if self.n == 4 else h


@pytest.mark.parametrize(
    ("line", "answer", "forward"),
    [
        ("catch shape", "the shape is [2, 2]; it was [2, 4]", 2),
        ("catch dtype", "the dtype is float64; it was float32", 4),
        ("catch nograd", "the output needs no gradient, though its weights are trainable", 3),
        ("catch slow 0", "over 0 ms", 1),
    ],
)
def test_other_catchpoints(line: str, answer: str, forward: int) -> None:
    model = Wobbling()
    screen, _ = run(model, [line, "continue"], lambda: [model(torch.ones(2, 4)) for _ in range(4)])
    words = " ".join(screen.split())
    assert answer in words
    assert f"forward {forward}" in words


def test_a_catchpoint_is_saved_and_read_again(tmp_path: Path) -> None:
    model = LogOfZero()
    file = tmp_path / "points"
    lines = ["catch nan in last forward", "catch slow 50 first", f"save {file}"]
    run(model, [*lines, "continue"], lambda: model(model.data(1)))
    assert file.read_text().splitlines()[-2:] == lines[:2]


def test_detection_for_programs() -> None:
    model = SlopeOfSqrt()
    bad = LogOfZero()
    with layerstep.anomaly_detection() as found:
        model.loss(model(model.data(1))).backward()
        bad(bad.data(1))
        model(model.data(2))
    assert [(each.part, each.kind) for each in found.findings] == [("backward", "nan"), ("forward", "inf")]
    assert "sqrt" in found.findings[0].op and found.findings[1].op == "log"
    assert found.findings[1].line and "nan_cases" in found.findings[1].file


def test_batch_work_ends_with_3(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch
            from torch import nn
            model = nn.Linear(2, 2)
            (model(torch.ones(1, 2)) * 0).log().sum().backward()
            print("done")
            """
        )
    )
    command = ["-m", "layerstep", "run", "--batch", "-e", "catch nonfinite", "-e", "continue"]
    done = quick_python.run([*command, script])
    assert done.returncode == 3, done.stderr
    assert done.stdout == "done\n"
    assert "born in log" in done.stderr
    assert "train.py:5" in done.stderr


@pytest.mark.long
def test_a_core_of_what_was_caught_runs_again_bit_for_bit(tmp_path: Path) -> None:
    script = tmp_path / "nets.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch
            from torch import nn

            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layer = nn.Linear(4, 4)
                    self.drop = nn.Dropout(0.5)

                def forward(self, x):
                    return self.drop(self.layer(x)).log()

            if __name__ == "__main__":
                torch.manual_seed(0)
                torch.rand(3)
                Net()(torch.ones(5, 4))
            """
        )
    )
    layerstep_ = ["-m", "layerstep"]
    core = tmp_path / "x.lscore"
    run = ["run", "--batch", "--dump", str(core), "-e", "catch nonfinite", "-e", "continue", str(script)]
    done = quick_python.run([*layerstep_, *run])
    assert done.returncode == 3, done.stderr
    again = ["open", "--batch", "-e", "again", "--model", f"{script}:Net", str(core)]
    done = quick_python.run([*layerstep_, *again])
    assert "gave the same output again, bit for bit" in done.stderr, done.stderr
    assert "born in log" in " ".join(done.stderr.split())


def test_a_loss_too_large_to_hold_names_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    from layerstep.nonfinite import bad_nodes as blame

    monkeypatch.setattr(blame, "MOST_BYTES", 0)
    model = nn.Linear(2, 2)
    screen, _ = run(
        model, ["catch nonfinite", "continue"], lambda: (model(torch.ones(1, 2)) * 0).log().sum().backward()
    )
    assert "too many to hold: test_catch.py:" in " ".join(screen.split())


class Cached(Net):
    """State in a plain object, which each call adds to."""

    class Cache:
        def __init__(self) -> None:
            self.rows: list[Tensor] = []
            self.calls = 0

        def add(self, row: Tensor) -> Tensor:
            self.calls += 1
            self.rows.append(row)
            return torch.stack(self.rows).sum(0)

    def __init__(self) -> None:
        super().__init__()
        self.cache = self.Cache()

    def middle(self, h: Tensor) -> Tensor:
        return self.cache.add(h).abs().log()


def test_a_cache_of_the_model_is_as_without_the_second_run() -> None:
    bare, caught = Cached(), Cached()
    outputs = [bare(bare.data(n)) for n in range(3)]
    again: list[Tensor] = []
    run(
        caught,
        ["catch nonfinite", "continue"],
        lambda: again.extend(caught(caught.data(n)) for n in range(3)),
    )
    assert (caught.cache.calls, len(caught.cache.rows)) == (3, 3)
    for one, other in zip(outputs, again, strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


def test_detach_at_a_stop_in_a_second_run_leaves_no_hook() -> None:
    model = LogOfZero()
    console = DebugConsole(model, commands=["catch nonfinite", "continue", "detach"], output=io.StringIO())
    with console:
        model(model.data(1))
        assert not model._forward_hooks and not model._forward_pre_hooks


def test_threads_have_their_own_beginnings() -> None:
    """One enters, another comes and goes, the first ends: each is run again on its own input."""
    entered, go_on = threading.Event(), threading.Event()

    class Two(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x) * 0
            if x[0, 0] > 0:
                return h.log()
            entered.set()
            go_on.wait(100)
            return (h - 1).sqrt()

    model = Two()
    console = DebugConsole(model, commands=["catch nonfinite", *["continue"] * 9], output=io.StringIO())
    found: list[str] = []
    with console:
        search_of(console.session).listeners.append(lambda origin: found.append(origin.op))
        slow = threading.Thread(target=model, args=(torch.full((3, 4), -1.0),))
        slow.start()
        entered.wait(100)
        model(torch.full((3, 4), 1.0))
        go_on.set()
        slow.join()
    assert found == ["log", "sqrt"]


def test_a_gradient_whose_forward_was_bad_says_so() -> None:
    model = LogOfZero()
    screen, _ = run(
        model, ["catch nonfinite backward", "continue"], lambda: model.loss(model(model.data(1))).backward()
    )
    assert "in the forward already" in " ".join(screen.split())


def test_in_where_counts_gradients_of_its_parameters() -> None:
    model = SlopeOfSqrt()
    screen, _ = run(
        model,
        ["catch nonfinite in first backward", "continue"],
        lambda: model.loss(model(model.data(1))).backward(),
    )
    assert "the derivative of sqrt" in screen


def test_a_catchpoint_at_a_path_that_is_not_there_is_refused() -> None:
    model = LogOfZero()
    screen, _ = run(model, ["catch nan in nowhere", "continue"], lambda: model(model.data(1)))
    assert "nowhere" in screen and "✗" in screen


@pytest.mark.long
def test_a_recomputed_block_is_no_model(tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text(
        textwrap.dedent(
            """
            import torch
            from torch import nn
            from torch.utils.checkpoint import checkpoint

            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

                def forward(self, x):
                    for block in self.blocks:
                        x = checkpoint(block, x, use_reentrant=True)
                    return x

            model = Net()
            model(torch.ones(1, 2, requires_grad=True)).sum().backward()
            model(torch.ones(1, 2, requires_grad=True)).sum().backward()
            """
        )
    )
    command = ["-m", "layerstep", "run", "--batch", "-e", "break blocks.0", "-e", "continue"]
    done = quick_python.run([*command, script])
    assert done.stderr.count("found") == 1, done.stderr


def test_the_check_of_every_op_works_beside_another_catchpoint() -> None:
    Toggle.calls = 0
    model = Toggle()
    lines = ["catch inf", "catch nan --every-op", "continue"]
    screen, console = run(model, lines, lambda: model(model.data(1)))
    found = search_of(console.session).found
    assert found is not None and found.op == "mul", screen


def test_a_module_without_parameters_is_watched_if_there_is_no_other_model() -> None:
    class Log(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(x)

    with layerstep.anomaly_detection() as found:
        nn.Sequential(nn.Identity(), Log())(torch.tensor([1.0, -1.0]))
    assert [(each.op, each.layer) for each in found.findings] == [("log", "Sequential.1")]
