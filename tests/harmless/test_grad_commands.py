"""The gradient commands on every kind of model: the run stays the same, and they answer without a bug."""

from __future__ import annotations

import functools

import pytest
import torch

from zoo import ZOO, Entry, Run, differences, entry_named, hook_count, play, taps_on

TRAINED = [entry for entry in ZOO if "train" in entry.modes]
OPTIMIZER = functools.partial(torch.optim.AdamW, lr=0.01, foreach=True)
LOOK = (
    "grad",
    "grad flow",
    "grad none",
    "grad dead",
    "grad check",
    "grad trend",
    "grad animate",
    "grad clip",
)


def _lines(entry: Entry) -> list[str]:
    begin = ["grad record --updates", "grad dead **", f"break {entry.inner}", f"break {entry.inner} backward"]
    return [*begin, "continue", *[*LOOK, "continue"] * 3, *["continue"] * 20]


@functools.cache
def bare(name: str) -> Run:
    return play(entry_named(name), "train", optimizer=OPTIMIZER)


@pytest.mark.parametrize("entry", TRAINED, ids=str)
def test_a_run_is_the_same_with_and_without(entry: Entry) -> None:
    run = play(entry, "train", _lines(entry), optimizer=OPTIMIZER)
    assert differences(bare(entry.name).state, run.state) == []
    assert run.seen.bugs == []
    assert not run.seen.is_perturbed
    assert not taps_on(run.model)
    assert hook_count(run.model) == hook_count(bare(entry.name).model)
    assert " differ " in run.seen.text or "cannot be rerun" in run.seen.text, "nothing was checked"
    assert run.seen.stops, "nothing stopped, so nothing was tested"
