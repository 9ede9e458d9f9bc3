"""Looking changes nothing: outputs, gradients, parameters, buffers, random streams are as in the bare run."""

from __future__ import annotations

import functools

import pytest
import torch

from zoo import ZOO, Entry, Run, console_on, differences, entry_named, hook_count, play, taps_on

LOOK = (
    "where",
    "list",
    "tree",
    "stats out",
    "inspect out",
    "inspect inp",
    "inspect mod",
    "print out",
    "out.sum()",
    "model",
    "mod.weight",
    "mod.weight.norm()",
    "inspect mod.weight",
    "torch.randn(3)",
    "torch.nn.functional.dropout(torch.ones(8), 0.5)",
    "__import__('random').random(), __import__('numpy').random.rand()",
    "[parameter.sum() for parameter in model.parameters()]",
    "{key: value.float().sum() for key, value in model.state_dict().items()}",
    "doubled = torch.rand(2) * 2",
    "doubled.sum() + torch.rand(())",
    "no_such_name + 1",
    "up",
    "list",
    "inp",
    "down",
    "perturbed?",
)
"""What looks at tensors, as it would be typed at a stop; some of it is wrong for some of the models."""

LOOK_AROUND = (
    "tree 1",
    "inspect model",
    "kwargs",
    "mod.training",
    "print('seen', name)",
    "$1",
    "1 / 0",
    "frame 0",
    "info breaks",
    "info cost",
    "info models",
    "history",
    "help step",
    "config",
    "why-not 1",
    "alias so = stats out",
    "so",
    "no such command",
)

EACH = ("stats", "out.sum()", "torch.rand(2)", "mod.weight")


def _by_path(entry: Entry) -> list[str]:
    steps = ["step", "step 2", "next", "into", "finish"]
    stepping = [line for step in steps for line in ("out.sum()", "mod.weight", step)]
    return [f"break {entry.inner}", "watch torch.rand(())", "continue", *LOOK, *stepping, *EACH, "continue"]


def _by_glob(entry: Entry) -> list[str]:
    rounds = [*[*EACH, "continue"] * 3, *["continue"] * 20]
    return ["break **", "break ** enter", "continue", *rounds, *EACH, "where", "perturbed?", "detach"]


def _by_type(entry: Entry) -> list[str]:
    return [
        f"break type:{entry.kind}",
        "commands 1 stats out; torch.rand(3); mod.weight; continue",
        f"break type:{entry.kind} enter",
        "continue",
        *["stats inp", "inspect mod", "continue"] * 2,
        *["continue"] * 12,
    ]


def _by_condition(entry: Entry) -> list[str]:
    return [
        "break ** if torch.rand(()) < 0.5 and __import__('random').random() < 2",
        f"break {entry.inner} if mod.training or name",
        "break ** if no_such_name",
        "delete 3",
        'log ** "{name} {torch.rand(2)} {out} {mod.weight} {mod.training}"',
        "continue",
        *["out.sum()", "continue"] * 4,
        *["continue"] * 12,
    ]


def _by_step(entry: Entry) -> list[str]:
    return [*["step", *EACH] * 4, *["step"] * 16, *EACH, "continue"]


def _by_until(entry: Entry) -> list[str]:
    return [
        f"until {entry.inner}",
        *LOOK_AROUND,
        "until torch.rand(()) > 0.5",
        "stats",
        "until forward 2",
        *EACH,
        f"tbreak {entry.inner} enter",
        "continue",
        "stats inp",
        "finish",
        "continue",
    ]


def _by_silent_points(entry: Entry) -> list[str]:
    return [f"break {entry.inner} if False", 'log ** "x {out}" if 1 > 2', "break **", "disable 3", "continue"]


PLANS = {
    plan.__name__.removeprefix("_"): plan
    for plan in (_by_path, _by_glob, _by_type, _by_condition, _by_step, _by_until, _by_silent_points)
}
CASES = [pytest.param(entry, mode, id=f"{entry}-{mode}") for entry in ZOO for mode in entry.modes]
PLANNED = [
    pytest.param(entry, mode, plan, id=f"{entry}-{mode}-{plan}")
    for entry in ZOO
    for mode in entry.modes
    for plan in PLANS
    if mode == entry.modes[0]
    or plan in ("by_path", "by_glob")
    or (mode == "eval" and plan not in ("by_until", "by_silent_points"))
]


@functools.cache
def bare(name: str, mode: str) -> Run:
    """The run without a debugger."""
    return play(entry_named(name), mode)


@pytest.mark.parametrize("entry, mode, plan", PLANNED)
def test_a_run_is_the_same_with_and_without(entry: Entry, mode: str, plan: str) -> None:
    expected = bare(entry.name, mode)
    run = play(entry, mode, PLANS[plan](entry))
    assert differences(expected.state, run.state) == []
    assert run.seen.bugs == []
    assert not run.seen.is_perturbed
    assert not taps_on(run.model)
    assert hook_count(run.model) == hook_count(expected.model)
    if plan == "by_silent_points":
        assert not run.seen.stops
    else:
        assert run.seen.stops, "nothing stopped, so nothing was tested"


@pytest.mark.parametrize("entry", [entry for entry in ZOO if entry.fused], ids=str)
def test_playing_beside_a_fused_kernel_is_said(entry: Entry) -> None:
    run = play(entry, "frozen", ["break layers.0.linear1 if False", "continue"])
    assert "is one kernel: its modules are run as well" in run.seen.text


@pytest.mark.parametrize("entry", [entry for entry in ZOO if entry.fused], ids=str)
@pytest.mark.parametrize("last", ["continue", "detach", "delete 1\nfinish"])
def test_a_fused_layer_left_in_its_middle_gives_the_kernels_result(entry: Entry, last: str) -> None:
    run = play(entry, "frozen", ["break layers.0.norm1", "continue", *last.splitlines(), "detach"])
    assert run.seen.stops
    assert differences(bare(entry.name, "frozen").state, run.state) == []
    assert not taps_on(run.model)


def test_hooks_of_the_user_keep_the_plain_path() -> None:
    """With a hook of theirs inside, the bare layer is not fused; so neither is the tapped one."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    seen: list[int] = []
    layer.linear1.register_forward_hook(lambda module, args, output: seen.append(1))
    x, mask = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        expected = layer(x, src_key_padding_mask=mask)
        console, record = console_on(layer, ["break norm1", "continue", "continue"])
        out = console.run(x, src_key_padding_mask=mask)
    assert torch.equal(out, expected)
    assert seen == [1, 1] and record.stops
    assert "one kernel" not in record.text


def test_a_plain_path_that_fails_beside_its_kernel_is_said_and_the_run_goes_on() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    layer.dropout.forward = lambda x: 1 / 0  # type: ignore[assignment]
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        expected = layer(x)
        console, record = console_on(layer, ["break linear1", "continue", "continue"])
        assert torch.equal(console.run(x), expected)
    assert record.stops
    assert "cannot be run: division by zero" in record.text


@pytest.mark.parametrize("entry, mode", CASES)
def test_a_console_without_points_installs_nothing(entry: Entry, mode: str) -> None:
    run = play(entry, mode, [])
    assert differences(bare(entry.name, mode).state, run.state) == []
    assert run.seen.text == ""
