"""Every look of the inspector on every model: nothing of the run changes or stays, answers are short."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerstep.config import Config
from layerstep.engine.messages import Message
from layerstep.render.screen import to_text
from zoo import (
    MLP,
    ZOO,
    Entry,
    Run,
    Seen,
    console_on,
    differences,
    entry_named,
    feeding,
    global_state,
    hook_count,
    loop,
    loss_of,
    play,
    seed,
    taps_on,
    tensors_of,
)

LOOKS = (
    "stats",
    "stats **",
    "stats out inp --sort std",
    "stats --params --sort zero",
    "inspect",
    "inspect inp",
    "inspect mod",
    "hist",
    "hist out --exact --log --bins 7",
    "export x.csv",
    "heatmap",
    "export x.svg",
    "top",
    "top inp 3",
    "anomalies",
    "export x.json",
    "out",
    "compare out inp",
    "compare out $1",
    "compare mod, mod",
    "weights",
    "weights --sort dead",
    "activations",
    "activations ** --sort outliers",
    "attention",
    "attention **",
    "record",
    "save-tensor out x.safetensors",
    "compare out x.safetensors",
    "save-tensor mod mod.safetensors",
    "compare mod mod.safetensors",
    "save-tensor inp x.npy",
)
"""As they would be typed at any stop; some of them are wrong for some of the models."""

FEW = ("stats **", "hist out", "anomalies", "activations", "attention")


def _at_exits(entry: Entry) -> list[str]:
    """Recorded with copies; looked at where a module and then the whole model has finished."""
    looks = (*LOOKS, f"history {entry.inner}", f"compare out {entry.inner}.output@-1")
    return ["record ** --tensors", f"break {entry.inner}", "continue", *looks, "step", *FEW, *_END]


def _at_enters(entry: Entry) -> list[str]:
    """Without copies, in the middle of things: entered, then one frame up."""
    return ["record **", f"break {entry.inner} enter", "continue", *LOOKS, "up", *FEW, *_END]


_END = ("tbreak ** if forward == 2", "continue", *FEW, "leaks", "perturbed?", "detach")

PLANS = {"at_exits": _at_exits, "at_enters": _at_enters}
PLANNED = [
    pytest.param(entry, mode, plan, id=f"{entry}-{mode}-{plan}")
    for entry in ZOO
    for mode in entry.modes
    for plan in PLANS
    if mode == entry.modes[0] or (plan == "at_exits" and mode in ("frozen", "inference"))
]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    before = global_state()
    yield
    assert global_state() == before


@functools.cache
def bare(name: str, mode: str) -> Run:
    """The run without a debugger."""
    return play(entry_named(name), mode)


def _heard(model: nn.Module, lines: Sequence[str]) -> tuple[Any, Seen, dict[str, str]]:
    """A console that takes these lines, and the last answer to each."""
    console, seen = console_on(model, lines)
    answers: dict[str, str] = {}

    def hear(message: Message) -> None:
        if message.kind == "answer":
            answers[message.line] = to_text(message.view)

    console.session.listen(hear)
    return console, seen, answers


@pytest.mark.parametrize("entry, mode, plan", PLANNED)
def test_a_run_that_is_inspected_is_the_bare_run(entry: Entry, mode: str, plan: str) -> None:
    expected = bare(entry.name, mode)
    seed(0)
    model = entry.build()
    seed(1)
    console, seen, answers = _heard(model, PLANS[plan](entry))
    with console:
        state = loop(entry, model, mode)
    assert differences(expected.state, state) == []
    assert seen.bugs == [] and "a bug in layerstep" not in seen.text
    assert not seen.is_perturbed
    assert len(seen.stops) >= 2
    assert not taps_on(model)
    assert hook_count(model) == hook_count(expected.model)
    assert {line for line, text in answers.items() if text.count("\n") > Config().max_lines} == set()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """What only the cyclic collector frees is not free while the run needs the memory."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("mode, plan", [("train", "at_exits"), ("frozen", "at_enters")])
@pytest.mark.parametrize("name", ["mlp", "resnet", "encoder", "gpt2"])
def test_nothing_of_a_run_is_held_after_the_session(
    name: str, mode: str, plan: str, no_collection: None
) -> None:
    """Neither what went in nor what came out, nor the graph behind it; the console itself is still there."""
    entry = entry_named(name)
    seed(0)
    model = entry.build()
    model.train(mode == "train")
    console, seen = console_on(model, PLANS[plan](entry))
    with console:
        for _ in range(2):
            references = _one_iteration(entry, model, mode)
    assert len(seen.stops) >= 2 and seen.bugs == []
    assert [reference() for reference in references if reference() is not None] == []


def _one_iteration(entry: Entry, model: nn.Module, mode: str) -> list[weakref.ref[Tensor]]:
    with feeding(entry, mode) as (args, kwargs):
        output = model(*args, **kwargs)
    if mode == "train":
        loss_of(output).backward()
    return [weakref.ref(leaf) for leaf in tensors_of((args, kwargs, output))]


def test_copies_that_were_recorded_go_with_the_session() -> None:
    seed(0)
    model = MLP()
    console, _ = console_on(model, ["record ** --tensors", "break head", "continue", "continue"])
    with console:
        model(torch.ones(2, 6))
        copies = [weakref.ref(entry.value) for entry in console.session.run.recordings.everything()]
        assert len(copies) == 8 and all(copy() is not None for copy in copies)
    del console
    gc.collect()
    assert [copy() for copy in copies if copy() is not None] == []
