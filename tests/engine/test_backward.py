"""The backward pass: gradients in and out of modules, its order, and what it does not see."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from layerstep import DebugConsole
from layerstep.calls.backward import Call, State

NOTING = ["break ** backward if False", "continue"]


class Block(nn.Module):
    """A residual block; in place if asked for."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=inplace), nn.Linear(8, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(self.norm(x))


class Net(nn.Module):
    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.blocks = nn.ModuleList([Block(inplace), Block(inplace)])
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Attend(nn.Module):
    """Several inputs by position and name, several outputs, one of them unused by the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(6, 2, batch_first=True)
        self.rnn = nn.LSTM(6, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        mixed, weights = self.mix(x, x, value=x * 2)
        out, (h, c) = self.rnn(mixed)
        return {"out": out, "state": h, "unused": c, "weights": weights}


class Followed:
    """A console that notes every call, and the events of the backward pass in their order."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.console = DebugConsole(model, commands=NOTING, output=io.StringIO())
        self.events: list[tuple[str, str]] = []
        self.gradients: dict[str, tuple[list[Any], list[Any]]] = {}
        graph = self.console.session.backward_pass.graph
        names = {module: name for name, module in model.named_modules()}

        def entered(call: Call) -> None:
            self.events.append(("enter", names[call.module]))

        def done(call: Call) -> None:
            self.events.append(("done", names[call.module]))
            self.gradients[names[call.module]] = (list(call.grad_in), list(call.grad_out))

        graph._entered, graph._done = entered, done  # type: ignore[method-assign]


def by_torch(model: nn.Module, run: Any) -> dict[str, tuple[list[Any], list[Any]]]:
    """What torch's full backward hooks report."""
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    handles = [
        module.register_full_backward_hook(
            lambda module, into, out, name=name: found.update({name: (list(into), list(out))})
        )
        for name, module in model.named_modules()
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about outputs and inputs that its hooks do not see
        run()
    for handle in handles:
        handle.remove()
    return found


def same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.allclose(one, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_gradients_are_those_of_full_backward_hooks(needs_grad: bool) -> None:
    torch.manual_seed(0)
    model = Net()
    x = torch.randn(5, 4, requires_grad=needs_grad)
    followed = Followed(model)
    with followed.console:
        model(x).square().sum().backward()
    expected = by_torch(model, lambda: model(x).square().sum().backward())
    assert set(followed.gradients) == {name for name, _ in model.named_modules() if name != "blocks"}
    for name, (into, out) in expected.items():
        mine_in, mine_out = followed.gradients[name]
        assert same(mine_out[0], out[0]), name
        assert same(mine_in[0], into[0]), name


def test_several_inputs_and_outputs() -> None:
    torch.manual_seed(0)
    model = Attend()
    x = torch.randn(2, 3, 6, requires_grad=True)
    followed = Followed(model)

    def loss() -> torch.Tensor:
        found = model(x)
        return found["out"].square().sum() + found["state"].sum()

    with followed.console:
        loss().backward()
    expected = by_torch(model, lambda: loss().backward())
    into, out = followed.gradients["rnn"]
    assert same(out[0], expected["rnn"][1][0]) and same(into[0], expected["rnn"][0][0])
    assert out[2] is None, "the cell state is in no loss"
    into, _ = followed.gradients["mix"]
    assert [gradient is not None for gradient in into] == [True, True, True]


def test_a_residual_branch_is_not_mixed_in() -> None:
    """In place too, where torch's own hooks raise."""
    torch.manual_seed(0)
    model = Net(inplace=True)
    x = torch.randn(5, 4)
    followed = Followed(model)
    with followed.console:
        model(x).square().sum().backward()
    block = model.blocks[1]
    before = model.blocks[0](model.first(x)).detach()
    beside, through = before.clone().requires_grad_(), before.clone().requires_grad_()
    model.last(beside + block.body(block.norm(through))).square().sum().backward()
    assert torch.allclose(followed.gradients["blocks.1.norm"][0][0], through.grad, rtol=1e-5)  # type: ignore[arg-type]
    total = through.grad + beside.grad  # type: ignore[operator]
    assert torch.allclose(followed.gradients["blocks.1"][0][0], total, rtol=1e-5)


def test_the_order_is_that_of_the_pass() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    followed = Followed(model)
    with followed.console:
        model(torch.randn(2, 3)).sum().backward()
    assert followed.events == [
        ("enter", ""),
        ("enter", "2"),
        ("done", "2"),
        ("enter", "1"),
        ("done", "1"),
        ("enter", "0"),
        ("done", "0"),
        ("done", ""),
    ]


def test_a_graph_that_is_kept_can_be_gone_through_again() -> None:
    model = Net()
    followed = Followed(model)
    with followed.console:
        loss = model(torch.randn(5, 4)).square().sum()
        loss.backward(retain_graph=True)
        first = list(followed.events)
        followed.events.clear()
        loss.backward()
    assert followed.events == first


def test_autograd_grad_and_double_backward_are_followed() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    x = torch.randn(2, 3, requires_grad=True)
    followed = Followed(model)
    with followed.console:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        assert ("done", "0") in followed.events
        gradient.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model[0].parameters() if parameter.dim() > 1)


def test_two_forwards_and_one_backward() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    followed = Followed(model)
    with followed.console:
        (model(torch.randn(2, 3)).sum() + model(torch.randn(2, 3)).sum()).backward()
        done = [
            call for call in followed.console.session.backward_pass.graph.calls if call.state is State.DONE
        ]
    assert len(done) == 6


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks_are_gone_through_once(reentrant: bool) -> None:
    class Checkpointed(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return self.last(x)

    torch.manual_seed(0)
    model = Checkpointed()
    followed = Followed(model)
    with followed.console:
        model(torch.randn(5, 4)).square().sum().backward()
    assert followed.events.count(("done", "blocks.0.norm")) == 1
    assert followed.events.count(("done", "last")) == 1


def test_what_is_not_seen_says_why() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.cut, self.unused, self.frozen = (nn.Linear(3, 3) for _ in range(4))
            self.aside = nn.Linear(3, 3)
            self.frozen.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.aside(x)
            with torch.no_grad():
                cut = self.cut(x)
            return self.used(self.frozen(x) + cut)

    model = Parts()
    followed = Followed(model)
    with followed.console:
        model(torch.randn(2, 3)).sum().backward()
        why = followed.console.session.backward_pass.why_unseen
        assert why(model.used) == ""
        assert why(model.unused) == "it was not called in the last forward"
        assert why(model.cut) == "it ran without gradients"
        assert why(model.frozen).startswith("its output needs no gradient: nothing in it or before it")
        assert why(model.aside).startswith("no gradient came")
        view = followed.console.execute("info backward")
    assert "unused" in str(view) and "aside" in str(view)


def test_stepping_through_the_backward_pass() -> None:
    torch.manual_seed(0)
    model, output = Net(), io.StringIO()
    stops: list[str] = []
    lines = [
        "break last backward",
        "continue",
        "step",
        "into",
        "finish",
        "next",
        "step 2",
        "delete",
        "continue",
    ]
    console = DebugConsole(model, commands=lines, output=output)
    session = console.session
    session.listen(lambda m: stops.append(session.run.pause.stack[0].path) if m.kind == "stop" else None)  # type: ignore[union-attr]
    with console:
        model(torch.randn(5, 4)).square().sum().backward()
    body = "blocks.1.body"
    assert stops == ["last", f"{body}.2", f"{body}.1", f"{body}.1", f"{body}.0", "blocks.1.norm"]


def test_into_goes_down_to_autograd_nodes() -> None:
    class Square(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * x).tanh().exp()

    model, output = nn.Sequential(nn.Linear(3, 3), Square()), io.StringIO()
    lines = ["break 0 backward", "tbreak 1 enter", "continue", "next", "next", *["into"] * 5]
    with DebugConsole(model, commands=lines, output=output):
        model(torch.randn(2, 3)).sum().backward()
    text = output.getvalue()
    nodes = [line.split("at ")[1].split()[0] for line in text.splitlines() if line.startswith("1  at ")]
    assert nodes == ["ExpBackward0", "TanhBackward0", "MulBackward0"]


def test_parameters_say_whether_their_gradient_is_there() -> None:
    model, output = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)), io.StringIO()
    lines = ["break 0 backward", "continue", "!model[2].weight.grad is not None", "continue"]
    with DebugConsole(model, commands=lines, output=output):
        model(torch.randn(2, 3)).sum().backward()
    assert "weight not yet" in output.getvalue()
    assert "$1  True" in output.getvalue()


def test_names_at_a_backward_stop() -> None:
    torch.manual_seed(0)
    model, output = Net(), io.StringIO()
    lines = [
        "break blocks.0 backward",
        "continue",
        "where",
        "grad_in.shape == grad_out.shape",
        "out",
        "up",
        "grad_in",
        "grad",
        "continue",
    ]
    with DebugConsole(model, commands=lines, output=output):
        model(torch.randn(5, 4)).square().sum().backward()
    text = " ".join(output.getvalue().split())
    assert "blocks.0 backward done Block forward 1 break 1" in text
    assert "x = block(x)" in text and "Net in backward" in text
    assert "$1 True" in text
    assert "blocks.0.output was not kept" in text
    assert "grad_in of Net is not complete yet" in text, "a part of it would be a lie"


def test_a_half_of_a_gradient_is_shown_by_no_command() -> None:
    """The block beside the branch has had the residual's part of its gradient already."""
    model, output = Net(), io.StringIO()
    lines = ["break blocks.1.body backward", "continue", "up", "grad", "where", "continue"]
    console = DebugConsole(model, commands=lines, output=output)
    held: list[object] = []
    session = console.session
    session.listen(
        lambda m: held.extend(session.run.pause.frame.call.grad_in) if m.line == "grad" else None  # type: ignore[union-attr]
    )
    with console:
        model(torch.randn(5, 4)).square().sum().backward()
    assert held == [None]


def test_in_the_forward_there_is_no_gradient_at_hand() -> None:
    model, output = Net(), io.StringIO()
    with DebugConsole(model, commands=["break last", "continue", "grad_out", "continue"], output=output):
        model(torch.randn(5, 4))
    assert "grad_out: there is no gradient in the forward; `break last backward`" in output.getvalue()


def test_training_steps_are_counted_and_waited_for() -> None:
    torch.manual_seed(0)
    model, output = Net(), io.StringIO()
    optimizer = torch.optim.Adam(model.parameters())
    lines = [
        "until step 3",
        "step",
        "!step, forward",
        "until step 3",
        "break last if step == 4",
        "continue",
        "!step",
    ]
    losses = []
    with DebugConsole(model, commands=lines, output=output):
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(torch.randn(5, 4)).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    text = output.getvalue()
    assert "(3, 4)" in text
    assert "training step 3 is done already" in text
    assert text.rstrip().endswith("$2  4")


def test_nothing_is_left_on_the_outputs() -> None:
    model = Net()
    console = DebugConsole(model, commands=NOTING, output=io.StringIO())
    with console:
        out = model(torch.randn(5, 4))
        assert out._backward_hooks
    assert not out._backward_hooks
    assert console.session.backward_pass.graph.calls == []


def test_a_saved_output_says_nothing_of_our_hook(recwarn: pytest.WarningsRecorder) -> None:
    model = Net()
    with DebugConsole(model, commands=NOTING, output=io.StringIO()):
        torch.save(model(torch.randn(5, 4)), io.BytesIO())
    assert not recwarn.list


def test_a_forward_that_was_under_way_is_not_said_to_have_left_a_module_out() -> None:
    model, output = Net(), io.StringIO()
    lines = ["tbreak blocks.0", "continue", "break first backward", "continue", "info backward"]
    with DebugConsole(model, commands=lines, output=output) as console:
        model(torch.randn(5, 4)).square().sum().backward()
        console.execute("info backward")
    assert "not called in the last forward" not in output.getvalue()


def test_attention_at_a_backward_stop_is_one_line() -> None:
    model, output = Net(), io.StringIO()
    lines = ["break last backward", "continue", "attention", "continue"]
    with DebugConsole(model, commands=lines, output=output):
        model(torch.randn(5, 4)).square().sum().backward()
    assert "a bug in layerstep" not in output.getvalue()


def test_no_gradient_is_held_after_its_module() -> None:
    model = Net()
    followed = Followed(model)
    followed.gradients.clear()
    graph = followed.console.session.backward_pass.graph
    graph._done = lambda call: None  # type: ignore[method-assign]
    with followed.console:
        model(torch.randn(5, 4)).square().sum().backward()
        held = [gradient for call in graph.calls for gradient in (*call.grad_out, *call.grad_in)]
    assert not any(isinstance(gradient, torch.Tensor) for gradient in held)
