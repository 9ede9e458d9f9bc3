"""Where a NaN was born: the right operation, line and module for every planted case."""

from __future__ import annotations

import io

import pytest
import torch

from layerstep import DebugConsole
from layerstep.nonfinite.catching import search_of
from layerstep.nonfinite.origin import Origin
from nan_cases import CASES, Case


def search(case: Case) -> tuple[Origin | None, str]:
    model = case.make()
    screen = io.StringIO()
    console = DebugConsole(model, commands=["catch nonfinite", "continue"] + ["continue"] * 9, output=screen)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    found = None
    with console:
        for step in range(1, case.steps + 1):
            optimizer.zero_grad()
            loss = model.loss(model(model.data(step)))
            if loss.requires_grad:
                loss.backward()
            found = search_of(console.session).found
            if found is not None:
                break
            optimizer.step()
    return found, screen.getvalue()


@pytest.mark.filterwarnings("ignore:(std|var)")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_birth_is_found(case: Case) -> None:
    found, screen = search(case)
    assert found is not None, "nothing was caught"
    assert found.is_found, (found.seen, found.note)
    assert case.op in f"{found.op} {found.detail}", screen
    assert found.part == case.part, screen
    if case.line:
        assert found.place.line == case.line, (found.place, screen)
    if case.path is not None:
        assert found.path == case.path, screen
    assert found.source.startswith(case.source), screen
    assert bool(found.source) == bool(case.source), screen
    if case.steps > 1:
        assert found.forward == 30
