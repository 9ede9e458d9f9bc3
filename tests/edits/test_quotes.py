"""A path in quotes is that path: people type `'h.*'` as they would in a shell."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zoo import console_on


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("patch --sweep '*' from torch.zeros(3, 4) metric out.sum()", "out.sum() is"),
        ('patch "0" from torch.zeros(3, 4)', "✓ edit 2 at 0: from torch.zeros(3, 4)"),
        ("edit '0' out * 2", "✓ edit 2 at 0"),
        ("ablate '*'", "✓ edit 2 at *"),
        ("whatif scale '0' 2", "differs by"),
        ("break '1'", "✓ break 2 at 1"),
        ("catch nan in '0'", "✓ catch 2 nan at 0"),
    ],
)
def test_quotes_around_a_path_are_taken_off(line: str, says: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    console, seen = console_on(model, ["break 1", "continue", line, "undo all", "delete", "continue"])
    with console:
        model(torch.ones(3, 4))
    assert says in " ".join(seen.text.split()) and "no module" not in seen.text, seen.text
