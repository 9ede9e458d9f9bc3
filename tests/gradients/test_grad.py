"""Gradients at the prompt: recording harms nothing, each fault is named, the check finds wrong backwards."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layerstep import DebugConsole
from layerstep.engine.messages import Message
from layerstep.gradients.recorder import RecordedGradients
from layerstep.views import Table
from zoo import differences, hook_count, random_streams, seed, taps_on


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.act = nn.ReLU()
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.act(self.norm(self.stem(x)))))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam, foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}
EVERYTHING = (
    "grad record --updates",
    "grad dead",
    "break head",
    "break stem backward",
    "continue",
    *("grad", "grad flow", "grad none", "grad dead", "grad check", "grad check stem", "grad stem", "continue")
    * 6,
)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    steps: int = 3,
    clear: Callable[[torch.optim.Optimizer], None] = torch.optim.Optimizer.zero_grad,
    loss_of: Callable[[Tensor], Tensor] = lambda out: out.square().mean(),
    passes: int = 1,
) -> None:
    for _ in range(steps):
        clear(optimizer)
        for _ in range(passes):
            loss_of(model(torch.randn(16, 4))).backward()
        optimizer.step()


def told(model: nn.Module, lines: list[str], run: Callable[[], None]) -> str:
    output = io.StringIO()
    with DebugConsole(model, commands=lines, output=output):
        run()
    text = output.getvalue()
    assert "a bug in layerstep" not in text
    return text


def said(model: nn.Module, lines: list[str], run: Callable[[], None]) -> str:
    """On one line, whatever the width."""
    return " ".join(told(model, lines, run).split())


def run_of(kind: str, lines: tuple[str, ...]) -> tuple[dict[str, Any], nn.Module]:
    seed(0)
    model = Net()
    optimizer = OPTIMIZERS[kind](model.parameters())
    if lines:
        told(model, list(lines), lambda: train(model, optimizer))
    else:
        train(model, optimizer)
    state = {
        "parameters": [p.detach() for p in model.parameters()],
        "gradients": [p.grad for p in model.parameters()],
        "buffers": list(model.buffers()),
        "optimizer": optimizer.state_dict(),
        "random": random_streams(),
    }
    return state, model


@pytest.mark.parametrize("lines", [EVERYTHING, ("grad record every 2", "continue")], ids=["all", "some"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_three_steps_are_the_same_with_and_without(kind: str, lines: tuple[str, ...]) -> None:
    bare, plain = run_of(kind, ())
    watched, model = run_of(kind, lines)
    assert differences(bare, watched) == []
    assert list(plain.state_dict()) == list(model.state_dict())
    assert not taps_on(model) and hook_count(model) == hook_count(plain)


def test_nothing_is_left_after_detach() -> None:
    seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    console = DebugConsole(model, commands=["grad record --updates", "continue"], output=io.StringIO())
    with console:
        train(model, optimizer)
        recorder = console.session.instruments.get(RecordedGradients).recorder
        assert recorder.is_on and len(recorder.log) == 3
    assert (
        not recorder.is_on
        and not console.session.run.training.before
        and not console.session.run.training.after
    )
    train(model, optimizer)
    assert len(recorder.log) == 3
    held = [weakref.ref(model.stem.weight), weakref.ref(model.stem.weight.grad)]
    del model, optimizer, console.model
    gc.collect()
    assert [reference() for reference in held] == [None, None]


def test_gradients_are_not_kept_alive_between_the_steps() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with DebugConsole(model, commands=["grad record --updates", "continue"], output=io.StringIO()):
        train(model, optimizer, steps=2)
        reference = weakref.ref(model.stem.weight.grad)
        optimizer.zero_grad()
        assert reference() is None


def test_what_is_recorded() -> None:
    seed(0)
    model = Net().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    console = DebugConsole(
        model, commands=["grad record every 2 --updates", "continue"], output=io.StringIO()
    )
    expected = []
    with console:
        for step in range(1, 6):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            if step % 2:
                grad, weight = model.stem.weight.grad, model.stem.weight.detach()
                expected.append(
                    (
                        step,
                        grad.abs().mean(),
                        grad.abs().max(),
                        grad.norm(),
                        0.5 * grad.norm() / weight.norm(),
                    )
                )
            optimizer.step()
        log = console.session.instruments.get(RecordedGradients).recorder.log
    found = [(e.step, *e.size, e.ratio) for e in log.of("stem.weight")]
    assert found == [pytest.approx([float(x) for x in each]) for each in expected]
    assert log.layers == ["stem", "norm", "head"]
    assert log.of("stem")[0].size.norm >= log.of("stem.weight")[0].size.norm


def test_two_optimizers_each_record_their_own() -> None:
    seed(0)
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    one, other = (torch.optim.SGD(model[name].parameters(), lr=0.1) for name in "ab")
    console = DebugConsole(model, commands=["grad record", "continue"], output=io.StringIO())
    with console:
        for _ in range(3):
            for name, optimizer in (("a", one), ("b", other)):
                model.zero_grad()
                (model[name](torch.randn(2, 4)).sum() * (2 if name == "b" else 1)).backward()
                optimizer.step()
        log = console.session.instruments.get(RecordedGradients).recorder.log
    assert log.steps == [1, 2, 3]
    assert [len(log.of(name)) for name in ("a", "b")] == [3, 3]
    assert [len(totals) for totals in log.totals.values()] == [3, 3]


def test_sparse_gradients_are_recorded() -> None:
    model = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    console = DebugConsole(model, commands=["grad record --updates", "continue"], output=io.StringIO())
    with console:
        model(torch.tensor([1, 1, 2])).sum().backward()
        optimizer.step()
        log = console.session.instruments.get(RecordedGradients).recorder.log
    assert log.of("Embedding.weight")[0].size == pytest.approx((12 / 40, 2.0, (4 * 4 + 4 * 1) ** 0.5))


def test_flow_and_trend_after_the_gradients_are_cleared() -> None:
    seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lines = [
        "grad flow",
        "grad record",
        "until step 3",
        "grad flow",
        "grad trend",
        "grad animate",
        "grad head",
        "continue",
    ]
    text = told(model, lines, lambda: train(model, optimizer, steps=5))
    assert "no gradient yet" in text
    assert "training step 3" in text and "steps 1 to 3, 3 recorded: Healthy" in " ".join(text.split())
    assert "█" in text and "head" in text


def test_a_bias_before_a_batch_norm_is_explained_and_not_flagged() -> None:
    seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keep = lambda optimizer: [p.grad.zero_() for p in model.parameters() if p.grad is not None]  # noqa: E731
    text = said(
        model, ["until step 2", "grad stem.bias", "continue"], lambda: train(model, optimizer, clear=keep)
    )
    assert "~0 before norm: the norm probably takes this bias away" in text and "vanishing" not in text
    layered = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    with torch.no_grad():
        layered[0].weight.mul_(1e12)
    optimizer = torch.optim.SGD(layered.parameters(), lr=0.0)
    text = said(
        layered,
        ["until step 2", "grad 0.bias", "continue"],
        lambda: train(layered, optimizer, clear=lambda o: None),
    )
    assert "vanishing" in text and "takes this bias away" not in text


def test_half_a_backward_is_not_called_vanishing() -> None:
    seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lines = ["break stem backward", "continue", "grad flow", "continue"]
    table = answer(model, lines, lambda: train(model, optimizer))
    assert [row[0] for row in table.rows] == ["norm", "head"], "of stem only a bias that the norm takes away"
    assert [row[-1] for row in table.rows] == ["", ""] and "this backward is not over" in table.note


@pytest.mark.parametrize(
    "scale, flag",
    [(1e-12, "vanishing"), (0.0, "all zero"), (1.0, ""), (1e9, "exploding"), (float("nan"), "not finite")],
)
def test_the_flow_names_what_is_wrong(scale: float, flag: str) -> None:
    seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = lambda: train(  # noqa: E731
        model, optimizer, clear=lambda o: None, loss_of=lambda out: out.square().sum() * scale
    )
    table = answer(model, ["until step 1", "grad flow", "continue"], run)
    assert [row[-1] for row in table.rows] == [flag, flag]


class Branches(nn.Module):
    """Every reason for a parameter to have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(4, 4)
        self.detached = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.frozen(x)) + self.detached(x).detach()


def answer(model: nn.Module, lines: list[str], run: Callable[[], None]) -> Any:
    """The view of the last line that was answered."""
    console = DebugConsole(model, commands=lines, output=io.StringIO())
    messages: list[Message] = []
    console.session.listen(messages.append)
    with console:
        run()
    return [message.view for message in messages if message.kind == "answer"][-1]


def reasons(table: Table) -> dict[str, str]:
    return {name: row[0] for row in table.rows for name in row[1].split(", ") if name.endswith("weight")}


def test_why_there_is_no_gradient() -> None:
    seed(0)
    model = Branches()
    optimizer = torch.optim.SGD([*model.used.parameters(), *model.detached.parameters()], lr=0.1)
    lines = ["break used backward", "continue", "delete 1", "until step 2", "grad none", "continue"]
    run = lambda: train(model, optimizer, steps=4)  # noqa: E731
    table = answer(model, lines, run)
    assert reasons(table) == {
        "used.weight": "none now",
        "frozen.weight": "frozen",
        "unused.weight": "unused",
        "detached.weight": "detached",
    }
    assert "so never changed by one: unused.weight, unused.bias" in table.note


def test_none_says_only_what_is_certain() -> None:
    seed(0)
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = lambda: train(model, optimizer)  # noqa: E731
    start = answer(model, ["break used", "continue", "grad none", "continue"], run)
    assert reasons(start)["used.weight"] == "none yet"
    assert start.note == "no optimizer has stepped yet"
    kept = lambda: train(model, optimizer, clear=lambda optimizer: None)  # noqa: E731
    table = answer(model, ["until step 2", "grad none", "continue"], kept)
    assert reasons(table) == {
        "frozen.weight": "frozen",
        "unused.weight": "not reached",
        "detached.weight": "not reached",
    }
    recorded = answer(model, ["grad record", "until step 2", "grad none", "continue"], run)
    assert reasons(recorded)["used.weight"] == "cleared"
    assert reasons(recorded)["detached.weight"] == "not reached"
    model.zero_grad()
    inside = answer(model, ["break used backward", "continue", "grad none", "continue"], run)
    assert reasons(inside)["unused.weight"] == "to come"


def test_all_gradients_there_is_said() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lines = ["until step 2", "grad none", "continue"]
    assert "✓ every parameter has a gradient" in told(
        model, lines, lambda: train(model, optimizer, clear=lambda o: None)
    )


STALE = "gradients are not cleared between the steps"


@pytest.mark.parametrize(
    "clear, passes, warns",
    [
        (lambda o: None, 1, True),
        (lambda o: o.zero_grad(), 1, False),
        (lambda o: o.zero_grad(set_to_none=False), 1, False),
        (lambda o: o.zero_grad(), 2, False),
        (lambda o: o.zero_grad(set_to_none=False), 2, False),
    ],
    ids=["missing", "to none", "in place", "accumulated", "accumulated, in place"],
)
def test_a_missing_zero_grad_is_noticed(clear: Any, passes: int, warns: bool) -> None:
    seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = lambda: train(model, optimizer, steps=8, clear=clear, passes=passes)  # noqa: E731
    assert (
        STALE in said(model, ["grad record every 2", "until step 6", "grad trend", "continue"], run)
    ) == warns


def test_clipping_gives_the_percentiles_of_what_was_recorded() -> None:
    seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    totals: list[float] = []

    def run() -> None:
        for _ in range(31):
            optimizer.zero_grad()
            model(torch.randn(16, 4)).square().mean().backward()
            totals.append(float(nn.utils.get_total_norm([p.grad for p in model.parameters()])))
            optimizer.step()

    text = said(model, ["grad record", "until step 30", "grad clip 1e-9", "grad clip 1e9", "continue"], run)
    p90 = np.percentile(totals[10:30], 90)
    assert f"max_norm={p90:.3g} would have clipped 2 of 20 steps, 10%" in text
    assert "max_norm=1e-9 would have clipped 20 of 20 steps, 100%" in text
    assert "max_norm=1e9 would have clipped 0 of 20 steps, 0%" in text


def test_dead_units_are_counted_over_forwards() -> None:
    seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Conv1d(1, 1, 1), nn.Flatten(0, 1))
    with torch.no_grad():
        model[0].bias[2] = -1e3
        model[0].weight[4] = 0
        model[0].bias[4] = torch.tensor(-1.0)
    output = io.StringIO()
    with DebugConsole(model, commands=["grad dead", "continue"], output=output) as console:
        for _ in range(3):
            model(torch.randn(500, 1, 4))
        console.execute("grad dead")
    row = next(line.split() for line in output.getvalue().splitlines() if line.startswith("1 "))
    assert row == ["1", "6", "2", "33%", "1,500", "2,", "4"]


def test_functions_are_not_modules_and_it_says_so() -> None:
    model = nn.Linear(4, 4)
    text = said(model, ["break Linear", "continue", "grad dead", "continue"], lambda: model(torch.ones(1, 4)))
    assert "no module is a ReLU" in text and "F.relu" in text


# --- grad check ---


class Wrong(torch.autograd.Function):
    """x³, with a backward that is off by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        return ctx.factor * grads[0] * 3 * x**2, None


class Cube(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 1.3))
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return Wrong.apply(x, self.factor) * self.scale


class Rounded(nn.Module):
    """Norms in single precision whatever it is given, as many language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Cut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach() * 2 + 0 * x


class SinglePrecision(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("single precision only")
        return x.sin()


class Several(nn.Module):
    def forward(self, x: Tensor, *, other: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"a": x * other["y"], "b": (x + 1).log()}


HEALTHY: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]] = {
    "linear": lambda: (nn.Linear(4, 3), (torch.randn(5, 4),), {}),
    "conv": lambda: (nn.Conv2d(2, 3, 3), (torch.randn(2, 2, 6, 6),), {}),
    "batch norm": lambda: (nn.BatchNorm1d(4), (torch.randn(8, 4),), {}),
    "layer norm": lambda: (nn.LayerNorm(4), (torch.randn(8, 4),), {}),
    "relu in place": lambda: (nn.ReLU(inplace=True), (torch.randn(5, 4),), {}),
    "gelu": lambda: (nn.GELU(), (torch.randn(5, 4),), {}),
    "dropout": lambda: (nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4)), (torch.randn(5, 4),), {}),
    "rrelu": lambda: (nn.RReLU(), (torch.randn(5, 4),), {}),
    "embedding": lambda: (nn.Embedding(9, 4), (torch.tensor([[1, 2, 2]]),), {}),
    "lstm": lambda: (nn.LSTM(4, 3, dropout=0.5, num_layers=2), (torch.randn(5, 2, 4),), {}),
    "attention": lambda: (nn.MultiheadAttention(4, 2), (x := torch.randn(3, 2, 4), x, x), {}),
    "encoder layer": lambda: (nn.TransformerEncoderLayer(4, 2, 8).eval(), (torch.randn(3, 2, 4),), {}),
    "rounded": lambda: (Rounded(), (torch.randn(6, 4),), {}),
    "single": lambda: (SinglePrecision(), (torch.randn(6, 4),), {}),
    "half": lambda: (nn.Linear(4, 4).bfloat16(), (torch.randn(5, 4).bfloat16(),), {}),
    "several": lambda: (Several(), (torch.rand(3),), {"other": {"y": torch.rand(3)}}),
    "cube": lambda: (Cube(1.0), (torch.randn(5, 4),), {}),
}


def checked(module: nn.Module, *args: Any, **kwargs: Any) -> str:
    model = nn.ModuleList([module])
    model.forward = lambda *a, **k: model[0](*a, **k)  # type: ignore[method-assign]
    return said(model, ["break 0", "continue", "grad check", "continue"], lambda: model(*args, **kwargs))


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_backward_passes_the_check(name: str) -> None:
    seed(0)
    module, args, kwargs = HEALTHY[name]()
    before = copy.deepcopy(module.state_dict())
    streams = random_streams()
    text = checked(module, *args, **kwargs)
    assert "as far as it was looked at" in text
    assert "no clear answer" not in text or name == "rounded"
    assert all(p.grad is None for p in module.parameters())
    if name not in ("dropout", "rrelu", "lstm", "batch norm"):  # the run itself draws or counts
        assert differences(before, module.state_dict()) == []
        assert differences(streams, random_streams()) == []


@pytest.mark.parametrize("factor, words", [(-1.0, "the sign is wrong"), (2.0, "off by a factor of 2")])
def test_a_wrong_backward_fails_the_check(factor: float, words: str) -> None:
    seed(0)
    text = checked(Cube(factor), torch.randn(5, 4))
    assert words in text and "as far as it was looked at" not in text
    row = text.partition("scale 4 ")[2].split()
    assert row[:3] == ["4", "0", "0"], "its own parameter has the right gradient"


def test_a_gradient_that_is_cut_off_fails_the_check() -> None:
    seed(0)
    assert "at [" in checked(Cut(), torch.randn(5, 4)) and "differences 2" in checked(
        Cut(), torch.randn(5, 4)
    )


def test_a_check_that_cannot_be_made_says_why() -> None:
    class Ids(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    assert "nothing to differentiate" in checked(Ids(), torch.ones(3, dtype=torch.long))
    model = nn.Sequential(nn.Linear(4, 4))

    def step() -> None:
        model(torch.ones(1, 4)).sum().backward()

    assert "nothing has stopped yet" in said(model, ["grad check"], step)
    text = said(model, ["break 0 backward", "continue", "grad check", "continue"], step)
    assert "is gone in the backward pass" in text


def test_hooks_of_the_user_do_not_see_the_check() -> None:
    module, seen = nn.Linear(4, 4), list[str]()
    module.register_forward_hook(lambda *args: seen.append("forward"))
    module.register_full_backward_hook(lambda *args: seen.append("backward"))
    module.weight.register_hook(lambda grad: seen.append("weight"))
    text = checked(module, torch.ones(2, 4))
    assert "hooks of yours in it were not called" in text
    assert seen == ["forward"]
