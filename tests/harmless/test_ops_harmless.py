"""Stepping from op to op changes nothing, and leaves no mode behind however a run ends."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from zoo import ZOO, Entry, Run, console_on, differences, entry_named, hook_count, play, taps_on


def modes() -> list[object]:
    """The function and dispatch modes that are on in this thread."""
    return [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]


LOOK = ("out", "inp", "where", "list", "torch.rand(3)", "out.sum() if hasattr(out, 'sum') else 0", "mod")


def _by_op(entry: Entry) -> list[str]:
    stepping = [
        "step op",
        *LOOK,
        "step op",
        "step op 3",
        "",
        "",
        "step op",
        "step op 1000",
        "step op",
        "next",
    ]
    return [f"break {entry.inner} enter", "continue", *stepping, "continue", *stepping, "continue"]


def _by_kernel(entry: Entry) -> list[str]:
    stepping = ["stepi", *LOOK, "stepi", "stepi 4", "", "step op", "stepi", "stepi 1000", "stepi", "step"]
    return [f"break {entry.inner} enter", "continue", *stepping, "continue", *stepping, "continue"]


def _by_point(entry: Entry) -> list[str]:
    return [
        "break op:* if torch.rand(()) < 0.3",
        f"break op:aten.* in {entry.inner} if False",
        "continue",
        *[*LOOK, "continue"] * 2,
        *["continue"] * 6,
        "delete 1",
        "continue",
    ]


def _all_the_way(entry: Entry) -> list[str]:
    return ["break ** enter", "continue", "delete 1", *["step op"] * 60, "continue"]


def _left_in_the_middle(entry: Entry) -> list[str]:
    return ["break ** enter", "continue", "delete 1", "step op", "stepi", "step op", "continue"]


def _detached(entry: Entry) -> list[str]:
    return ["break ** enter", "continue", "delete 1", "step op", "stepi", "step op", "detach"]


PLANS = {
    plan.__name__.removeprefix("_"): plan
    for plan in (_by_op, _by_kernel, _by_point, _all_the_way, _left_in_the_middle, _detached)
}
CASES = [
    pytest.param(entry, mode, plan, id=f"{entry}-{mode}-{plan}")
    for entry in ZOO
    for mode in entry.modes
    for plan in PLANS
    if mode == entry.modes[0] or plan in ("by_op", "by_kernel") or entry.fused
]


@functools.cache
def bare(name: str, mode: str) -> Run:
    return play(entry_named(name), mode)


@pytest.mark.parametrize("entry, mode, plan", CASES)
def test_a_run_stepped_by_ops_is_the_same(entry: Entry, mode: str, plan: str) -> None:
    expected = bare(entry.name, mode)
    before = modes()
    run = play(entry, mode, PLANS[plan](entry))
    assert modes() == before
    assert differences(expected.state, run.state) == []
    assert run.seen.bugs == []
    assert not run.seen.is_perturbed
    assert not taps_on(run.model)
    assert hook_count(run.model) == hook_count(expected.model)


class Fails(nn.Module):
    """Two ops, then what a test wants to happen."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        x = x + 1
        if self.error is not None:
            raise self.error
        return x * 2


class Around(nn.Module):
    """Catches what its child raises, if it is told to."""

    def __init__(self, error: BaseException | None = None, *, catches: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = Fails(error)
        self.catches = catches

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        try:
            return self.inner(x)
        except ValueError:
            if not self.catches:
                raise
            return x.sigmoid()


STEPS = [
    ["break inner enter", "continue", "step op", "step op", "step op", "step op"],
    ["break first", "continue", "step op", "stepi", "stepi", "stepi"],
    ["break first", "continue", "stepi", "step op 9", "step op 9"],
    ["break op:add", "break op:aten.add", "continue", "continue"],
]


@pytest.mark.parametrize("lines", STEPS, ids=lambda lines: lines[2])
@pytest.mark.parametrize("error", [ValueError("v"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_no_mode_is_left_after_an_exception(lines: list[str], error: BaseException) -> None:
    model = Around(error)
    console, seen = console_on(model, lines)
    console.attach()
    try:
        with pytest.raises(type(error)) as caught:
            model(torch.ones(2, 4))
        assert caught.value is error
        assert seen.stops
        assert modes() == [], "while the console is still attached"
    finally:
        console.detach()
    assert modes() == [] and not taps_on(model) and not seen.bugs


@pytest.mark.parametrize("lines", STEPS, ids=lambda lines: lines[2])
def test_an_exception_that_the_model_catches_leaves_none_either(lines: list[str]) -> None:
    model = Around(ValueError("v"), catches=True)
    x = torch.ones(2, 4)
    expected = model(x)
    console, seen = console_on(model, [*lines, "continue"])
    assert torch.equal(console.run(x), expected)
    assert modes() == [] and not taps_on(model) and not seen.bugs


@pytest.mark.parametrize("last", ["quit", "detach", "continue"])
@pytest.mark.parametrize("step", ["step op", "stepi"])
def test_no_mode_is_left_when_the_user_leaves_at_an_op(step: str, last: str) -> None:
    model = Around()
    x = torch.ones(2, 4)
    expected = model(x)
    console, seen = console_on(model, ["break first enter", "continue", "delete 1", step, step, last])
    console.attach()
    try:
        if last == "quit":
            with pytest.raises(SystemExit):
                model(x)
        else:
            assert torch.equal(model(x), expected)
        assert modes() == []
    finally:
        console.detach()
    assert len(seen.stops) == 3 and not seen.bugs


class Interrupting(TorchDispatchMode):
    """Ctrl-C in the middle of an op: a mode of the user's above ours raises it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "sigmoid" in str(func):
            raise KeyboardInterrupt
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("step", ["step op", "stepi", "break op:sigmoid", "break op:aten.sigmoid"])
def test_no_mode_is_left_after_an_interrupt_in_an_op(step: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    lines = [
        "break 0 enter",
        "continue",
        "delete 1",
        step,
        *([step] * 4 if "break" not in step else ["continue"]),
    ]
    console, seen = console_on(model, lines)
    console.attach()
    try:
        with Interrupting() as users:
            with pytest.raises(KeyboardInterrupt):
                model(torch.ones(2, 4))
            assert modes() == [users]
        assert modes() == []
    finally:
        console.detach()
    assert seen.stops and not seen.bugs


class Blocks(nn.Module):
    """Runs its parts in and out of inference_mode, which puts dispatch keys back at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.seen: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        with torch.inference_mode():
            y = self.b(x) + 1
        with Noting(self.seen):
            return self.c(x * y.clone().detach().abs().sum().item()).relu()


class Noting(TorchDispatchMode):
    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("start", ["a enter", "a", "b enter", "b", "c enter", "c"])
@pytest.mark.parametrize("steps", [1, 3, 6])
def test_stepping_across_an_inference_block_is_harmless(start: str, steps: int) -> None:
    """A mode taken out inside of the block, or laid inside and left, would leave the keys wrong after it."""
    torch.manual_seed(0)
    model = Blocks()
    x = torch.ones(2, 4, requires_grad=True)
    expected, noted = model(x), list(model.seen)
    model.seen.clear()
    stepping = [*["stepi"] * steps, "step op", "finish", "stepi", "next", "continue"]
    console, seen = console_on(model, [f"break {start}", "continue", "delete 1", *stepping])
    out = console.run(x)
    assert torch.equal(out, expected) and out.requires_grad and model.seen == noted
    (out.sum() + torch.zeros(2).sum()).backward()
    assert modes() == [] and not seen.bugs
    assert not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Python)


class OwnOps(nn.Module):
    """Ops of its own before, in and after a block of inference_mode; a part of it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.part = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin()
        with torch.inference_mode():
            y = x.cos().exp().tanh()
        x = self.part(x * float(y.sum()))
        with Noting(self.seen):
            return x.sigmoid().relu()


LEAVING = (
    ["step op", "stepi", "step op"],
    ["stepi", "step op", "stepi"],
    ["stepi"] * 4,
    ["stepi", "step op 3"],
)


@pytest.mark.filterwarnings("ignore")  # of dynamo, while it compiles
@pytest.mark.parametrize("start", ["break OwnOps enter", "break op:cos", "break op:aten.exp", "break part.0"])
@pytest.mark.parametrize("steps", LEAVING, ids=" ".join)
@pytest.mark.parametrize("last", ["continue", "next", "detach"])
def test_leaving_anywhere_leaves_the_keys_right(start: str, steps: list[str], last: str) -> None:
    torch.manual_seed(0)
    model = OwnOps()
    x = torch.ones(2, 4, requires_grad=True)
    expected, noted = model(x), list(model.seen)
    for _ in range(2):
        model.seen.clear()
        console, seen = console_on(model, [start, "continue", "delete 1", *steps, last, "continue"])
        console.attach()
        try:
            out = model(x)
            out.sum().backward()
            assert torch.equal(out, expected) and model.seen == noted
        finally:
            console.detach()
        assert modes() == [] and not seen.bugs and seen.stops
    assert not torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Python)


@pytest.mark.parametrize("line", ["step op", "stepi"])
def test_stepping_by_ops_from_the_entry_of_an_attention_leaves_it_its_kernel(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call has read its forward before the line is typed. Without its kernel, last digits differ."""
    kernel, calls = torch._native_multi_head_attention, list[Any]()
    counting = lambda *args, **kwargs: calls.append(args) or kernel(*args, **kwargs)  # noqa: E731
    monkeypatch.setattr(torch, "_native_multi_head_attention", counting)
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with torch.no_grad():
        bare = attention(x, x, x)[0]
        lines = ["break MultiheadAttention enter", "continue", line, line, "continue"]
        console, _ = console_on(attention, lines)
        seen = console.run(x, x, x)[0]
    assert torch.equal(bare, seen) and len(calls) == 2


@pytest.mark.parametrize("line", ["model(inp)", "flops"])
def test_a_line_that_runs_the_model_while_autocast_casts_a_weight_does_not_wait_for_ever(line: str) -> None:
    """Autocast holds a lock during the cast, whose kernels `stepi` stops at."""
    model = nn.Linear(4, 4)
    x = torch.randn(2, 4)
    stepping = ["break Linear enter", "continue", *(each for _ in range(4) for each in ("stepi", line))]
    console, screen = console_on(model, [*stepping, "continue"])
    with torch.autocast("cpu", torch.bfloat16):
        seen = console.run(x)
        bare = model(x)
    assert torch.equal(bare, seen) and "_to_copy" in screen.text
