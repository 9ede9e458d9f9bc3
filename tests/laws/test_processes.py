"""A tapped model that goes to another process works there as the bare one, and here as before."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.multiprocessing as processes
from torch import nn
from torch.utils.data import DataLoader

from at_work import Rows, made, work_and_tell, work_on
from layerstep import DebugConsole

LINES = (
    "break 0",
    "record **",
    "break 2 backward",
    "catch nonfinite",
    "catch exception in **",
    "profile on",
    "memory on",
    "leaks on",
    "watch --stop 0.weight",
    "grad record",
    "break op:linear if False",
)
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@contextmanager
def debugged(model: nn.Module) -> Iterator[None]:
    """With every instrument on, from before the model goes until after it."""
    said = io.StringIO()
    with DebugConsole(model, input=io.StringIO("continue\n" * 5000), output=said) as console:
        for line in LINES:
            console.execute(line)
        with torch.no_grad():
            model(torch.ones(3, 4))
        yield
        with torch.no_grad():
            model(torch.ones(3, 4))
        assert console.session.run.is_attached
    assert "bug in layerstep" not in said.getvalue(), said.getvalue()[-600:]


def sent(model: nn.Module, how: str) -> tuple[Any, bool, int | None]:
    context = processes.get_context(how)
    queue = context.SimpleQueue()
    process = context.Process(target=work_and_tell, args=(model, queue))
    process.start()
    done, has_us = queue.get()
    process.join()
    return done, has_us, process.exitcode


def test_a_forked_process_gets_the_bare_model() -> None:
    expected = work_on(made())
    model = made()
    with debugged(model):
        done, _, code = sent(model, "fork")
    assert done == expected and code == 0


def test_a_spawned_process_shares_the_model_and_knows_nothing_of_us() -> None:
    expected, model = made(), made()
    done_here = work_on(expected)
    with debugged(model):
        model.share_memory()
        done, has_us, code = sent(model, "spawn")
        assert model[0].weight.is_shared()
        assert torch.equal(model[0].weight, expected[0].weight)  # written by the other process
    assert done == done_here and code == 0 and not has_us


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_workers_of_a_loader_compute_with_the_model(how: str) -> None:
    rows = Rows(made())
    expected = torch.stack([rows[index] for index in range(4)])
    model = made()
    with debugged(model):
        found = torch.cat(list(DataLoader(Rows(model), num_workers=1, multiprocessing_context=how)))
    assert torch.equal(found, expected)
