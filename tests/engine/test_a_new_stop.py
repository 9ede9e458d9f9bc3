"""The sample of the contributors' page on stops works as it stands there."""

from __future__ import annotations

import io
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from layerstep import DebugConsole

PAGE = Path(__file__).parents[2] / "docs" / "contributing" / "adding-a-stop.md"


def test_the_sample_stops_where_the_rate_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = [
        each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "Rates" in each
    ]
    sample = types.ModuleType("rates_sample")
    monkeypatch.setitem(sys.modules, sample.__name__, sample)  # a slotted dataclass looks its module up
    exec(code, sample.__dict__)
    screen = io.StringIO()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    console = DebugConsole(model, input=io.StringIO("watch 6 * 7\nwhere\ncontinue\n"), output=screen)
    with console:
        console.session.instruments.get(sample.Rates)
        for rate in (0.1, 0.1, 0.01):
            optimizer.param_groups[0]["lr"] = rate
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    text = screen.getvalue()
    assert text.count("learning rate changed") == 1 and "0.1 → 0.01" in text
