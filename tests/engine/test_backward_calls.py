"""Calls of `backward()`: who is told, what happens to those who raise, and what is left in torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from layerstep.engine.session import Session
from layerstep.training_steps.backward_calls import BackwardCalls


@pytest.fixture(autouse=True)
def _torch_stays_as_it_was() -> Iterator[None]:
    before = torch.autograd.backward
    yield
    assert torch.autograd.backward is before


def loss_of(parameter: Tensor) -> Tensor:
    return (parameter * 3).sum()


def test_listeners_are_told_in_order() -> None:
    told: list[str] = []

    @contextlib.contextmanager
    def around(losses: list[Tensor], frame: Any) -> Iterator[None]:
        told.append("opened")
        yield
        told.append("closed")

    calls = BackwardCalls(pytest.fail)
    calls.listen(calls.around, around, True)
    calls.listen(calls.before, lambda losses, frame: told.append(f"before {losses[0].item():g}"), True)
    calls.listen(calls.after, lambda losses, frame: told.append("after"), True)
    loss_of(torch.ones(2, requires_grad=True)).backward()
    calls.stop()
    loss_of(torch.ones(2, requires_grad=True)).backward()
    assert told == ["opened", "before 6", "after", "closed"]


def test_after_a_pass_that_raises_only_the_blocks_are_closed() -> None:
    told: list[str] = []

    @contextlib.contextmanager
    def around(losses: list[Tensor], frame: Any) -> Iterator[None]:
        try:
            yield
        finally:
            told.append("closed")

    calls = BackwardCalls(pytest.fail)
    calls.listen(calls.around, around, True)
    calls.listen(calls.after, lambda losses, frame: told.append("after"), True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(()).backward()
    calls.stop()
    assert told == ["closed"]


def test_a_pass_inside_a_pass_is_told_apart() -> None:
    outer, inner = [], []
    calls = BackwardCalls(pytest.fail)
    calls.listen(calls.before, lambda losses, frame: outer.append(losses), True)
    calls.listen(calls.nested, lambda losses, frame: inner.append(losses), True)
    layer = nn.Linear(2, 2)
    checkpoint(layer, torch.ones(1, 2, requires_grad=True), use_reentrant=True).sum().backward()
    calls.stop()
    assert len(outer) == 1 and len(inner) == 1


def test_a_listener_that_raises_is_taken_off_and_the_pass_runs() -> None:
    session, parameter = Session(), torch.ones(2, requires_grad=True)
    session.attach()
    calls = session.run.backward_calls
    calls.listen(calls.before, lambda losses, frame: 1 / 0, True)
    loss_of(parameter).backward()
    assert parameter.grad is not None and parameter.grad.tolist() == [3.0, 3.0]
    assert not session.run.is_attached


def test_sessions_may_end_in_the_order_in_which_they_began() -> None:
    first, second, told = Session(), Session(), []
    for session in (first, second):
        session.attach()
        calls = session.run.backward_calls
        calls.listen(calls.before, lambda losses, frame: told.append(losses), True)
    loss_of(torch.ones(2, requires_grad=True)).backward()
    first.detach()
    loss_of(torch.ones(2, requires_grad=True)).backward()
    second.detach()
    assert len(told) == 3
