"""Walking through the backward pass changes nothing; every module is visited, or listed with the reason."""

from __future__ import annotations

import functools
from functools import partial

import pytest
import torch

from zoo import (
    ZOO,
    Entry,
    Run,
    console_on,
    differences,
    entry_named,
    feeding,
    hook_count,
    loss_of,
    play,
    seed,
    taps_on,
)

TRAINED = [entry for entry in ZOO if "train" in entry.modes]
LOOK = ("where", "stats grad_out", "inspect grad_in", "grad_out", "mod", "torch.rand(2)")


def _points(entry: Entry) -> list[str]:
    return ["break ** backward", "continue", *[*LOOK, "continue"] * 2, *["continue"] * 60, "detach"]


def _steps(entry: Entry) -> list[str]:
    stepping = [line for step in ("step", "next", "into", "finish", "step 2") for line in ("grad_out", step)]
    return [f"break {entry.inner} backward", "continue", *LOOK, *stepping, *["step"] * 30, "continue"]


def _condition(entry: Entry) -> list[str]:
    return [
        "break ** backward if grad_out.isnan().any()",
        "break ** backward if torch.rand(()) < 0",
        "continue",
    ]


PLANS = {"points": _points, "steps": _steps, "condition": _condition}


def _three_steps(entry: Entry, commands: list[str] | None = None) -> Run:
    """Three steps of a real optimizer."""
    return play(entry, "train", commands, iterations=3, optimizer=partial(torch.optim.AdamW, lr=0.01))


@functools.cache
def bare(name: str) -> Run:
    return _three_steps(entry_named(name))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("entry", TRAINED, ids=str)
def test_a_run_is_the_same_with_and_without(entry: Entry, plan: str) -> None:
    run = _three_steps(entry, PLANS[plan](entry))
    assert differences(bare(entry.name).state, run.state) == []
    assert run.seen.bugs == []
    assert not run.seen.is_perturbed
    assert not taps_on(run.model)
    assert hook_count(run.model) == hook_count(bare(entry.name).model)
    assert run.seen.stops or plan == "condition", "nothing stopped, so nothing was tested"


@pytest.mark.parametrize("entry", TRAINED, ids=str)
def test_every_module_is_visited_or_listed(entry: Entry) -> None:
    seed(0)
    model = entry.build()
    model.train()
    console, _ = console_on(model, ["break ** backward if False", "continue"])
    seed(1)
    with feeding(entry, "train") as (args, kwargs), console:
        out = model(*args, **kwargs)
        loss_of(out).backward()
        backpass, models = console.session.backward_pass, console.session.run.models
        for path, module in models.everything():
            is_seen, reason = backpass.seen(module) > 0, backpass.why_unseen(module)
            assert is_seen != bool(reason), (path, is_seen, reason)
        assert backpass.passes >= 1
    assert not taps_on(model)
