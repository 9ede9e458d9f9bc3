"""A line at the prompt, a condition, a log or a watch may run the model; the run does not notice."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from zoo import Run, console_on, differences, entry_named, play

CALLS = {
    "mlp": ("mod(inp)", "model(torch.ones(4, 6))", "body(torch.ones(4, 6))"),
    "resnet": ("model(torch.ones(2, 3, 8, 8))", "stem(torch.ones(2, 3, 8, 8))", "mod(inp.clone())"),
    "dict": ("mod(inp)", "model({'a': torch.ones(4, 6), 'more': {'b': torch.ones(4, 3)}})"),
    "shared": ("mod(inp)", "model(torch.ones(4, 6))"),
    "lstm": ("model(torch.ones(2, 3, dtype=torch.long), torch.tensor([3, 2]))", "mod(inp)"),
    "spectral_norm": ("mod(inp)", "model(inp)", "mod.weight", "getattr(mod, 'weight')"),
    "statistics": ("mod(inp)", "model(inp)", "[mod(inp) for _ in range(3)]"),
    "streams": ("mod(inp)", "model(inp)"),
    "autocast": ("mod(inp)", "model(torch.ones(4, 6))", "body.body(torch.ones(4, 6))"),
    "checkpoint": ("mod(inp)", "mod(inp) * out", "model(torch.ones(4, 6))"),
    "checkpoint_reentrant": ("mod(inp)", "model(torch.ones(4, 6, requires_grad=True))"),
    "own_hooks": ("mod(inp)", "model(torch.ones(4, 6))"),
    "compiled": ("mod(inp)", "model(torch.ones(4, 6))"),
    "gpt2": ("mod(inp)", "model(input_ids=torch.ones(1, 4, dtype=torch.long)).logits.sum()"),
    "functional": ("mod(inp)", "model(torch.ones(4, 6))"),
}
"""Expressions that run something at a stop on `inner`, by the entry of the zoo."""

CASES = [pytest.param(name, call, id=f"{name}: {call}") for name, calls in CALLS.items() for call in calls]


@functools.cache
def bare(name: str) -> Run:
    return play(entry_named(name), "train")


@functools.cache
def stops_without(name: str) -> list[Any]:
    """Where the run stops while nothing is called at the prompt."""
    return play(
        entry_named(name), "train", [f"break {entry_named(name).inner}", *["continue"] * 50]
    ).seen.stops


def _check(name: str, run: Run) -> None:
    assert run.seen.stops == stops_without(name), "the points were entered again"
    assert differences(bare(name).state, run.state) == []
    assert run.seen.bugs == []
    assert not run.seen.is_perturbed


@pytest.mark.parametrize("name, call", CASES)
def test_at_the_prompt(name: str, call: str) -> None:
    lines = [call, f"kept = {call}", "perturbed?", "continue"]
    run = play(entry_named(name), "train", [f"break {entry_named(name).inner}", "continue", *lines * 30])
    _check(name, run)
    assert "Error" not in run.seen.text, "the call itself failed"


@pytest.mark.parametrize("name, call", CASES)
def test_in_the_arguments_of_commands(name: str, call: str) -> None:
    lines = [f"inspect {call}", f"stats {call}", f"print {call}", f"p len([{call}])", "continue"]
    run = play(entry_named(name), "train", [f"break {entry_named(name).inner}", "continue", *lines * 30])
    _check(name, run)


@pytest.mark.parametrize("name, call", CASES)
def test_in_a_condition(name: str, call: str) -> None:
    lines = [f"break {entry_named(name).inner} if [{call}]", *["continue"] * 50]
    _check(name, play(entry_named(name), "train", lines))


@pytest.mark.parametrize("name, call", CASES)
def test_in_a_log(name: str, call: str) -> None:
    inner = entry_named(name).inner
    if "{" in call:
        pytest.skip("braces are the template's own")
    lines = [f"break {inner}", f'log {inner} "{{len([{call}])}}"', *["continue"] * 50]
    _check(name, play(entry_named(name), "train", lines))


@pytest.mark.parametrize("name, call", CASES)
def test_in_a_watch(name: str, call: str) -> None:
    lines = [f"break {entry_named(name).inner}", f"watch [{call}]", *["continue"] * 50]
    _check(name, play(entry_named(name), "train", lines))


@pytest.mark.parametrize("name", ["resnet", "dict", "shared"])
def test_past_the_hooks(name: str) -> None:
    """`.forward` runs a module without its hooks, and batch norm writes without a version: it is named."""
    lines = ["[m.forward(torch.ones(2, 4)) for m in model.modules() if type(m).__name__ == 'BatchNorm1d']"]
    lines += ["[m.forward(torch.ones(2, 6)) for m in model.modules() if type(m).__name__ == 'BatchNorm1d']"]
    lines += [
        "[m.forward(torch.ones(2, 4, 3, 3)) for m in model.modules() if type(m).__name__ == 'BatchNorm2d']"
    ]
    points = [f"break {entry_named(name).inner}", "continue", *lines, "perturbed?", "detach"]
    run = play(entry_named(name), "train", points)
    assert "running_mean" in run.seen.text and run.seen.is_perturbed


def test_a_backward_at_the_prompt_is_named() -> None:
    """It is the user's own edit: the gradients stay as it made them, and `perturbed?` lists them."""
    lines = ["break head", "continue", "mod(inp.detach()).sum().backward()", "perturbed?", "detach"]
    run = play(entry_named("mlp"), "train", lines)
    assert "head.weight.grad" in run.seen.text
    assert run.seen.is_perturbed


def test_an_edit_on_purpose_is_kept_and_named() -> None:
    lines = ["break head", "continue", "torch.nn.init.zeros_(mod.weight)", "perturbed?", "detach"]
    run = play(entry_named("mlp"), "frozen", lines)
    assert "this line changed head.weight" in run.seen.text
    assert run.seen.is_perturbed
    assert not run.model.get_parameter("head.weight").any()


def test_a_model_that_is_exported_at_the_prompt_keeps_its_buffers() -> None:
    """`torch.export` puts fake buffers into the modules while it traces them; they must not be put back."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    buffers = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    line = "torch.export.export(model, (torch.ones(2, 3),)) is not None"
    console, seen = console_on(model, ["import torch", "break 0", "continue", line, "perturbed?", "continue"])
    with torch.no_grad():
        console.run(torch.ones(2, 3) * torch.arange(2.0)[:, None])
    assert "True" in seen.text and not seen.bugs and not seen.is_perturbed
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name][0]
    assert int(model[1].num_batches_tracked) == 1
