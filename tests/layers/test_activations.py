"""What `activations` says of a layer: dead, constant, saturated and outlying units, of any tensor."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from layerstep import DebugConsole
from layerstep.layers.activations import measure_activation, remarks
from layerstep.views import Notice, Table, View


def ask(model: nn.Module, lines: list[str], *args: Any) -> dict[str, View]:
    """Type lines while the model runs once; what each was answered."""
    console = DebugConsole(model, commands=[*lines, "detach"], output=io.StringIO())
    answers: dict[str, View] = {}
    console.session.listen(lambda message: answers.update({message.line: message.view}))
    with console:
        model(*args)
    return answers


def cells(table: View, column: str) -> dict[str, str]:
    assert isinstance(table, Table)
    at = [one.name for one in table.columns].index(column)
    return {row[0]: row[at] for row in table.rows}


def test_dead_and_constant_units() -> None:
    values = torch.rand(4, 8, 10) + 0.1
    values[..., 2] = 0
    values[..., 7] = 0.5
    one = measure_activation(values, nn.ReLU())
    assert (one.units, one.seen, one.dead, one.constant) == (10, 32, 1, 1)
    assert remarks([("act", one)]) == ["act: 1 of 10 units dead (10%), 1 of 10 units constant"]
    assert measure_activation(values[:1], nn.ReLU()).dead is None, "eight positions tell nothing"


@pytest.mark.parametrize(
    ("module", "dim"), [(nn.Conv2d(3, 3, 1), 4), (nn.Conv1d(3, 3, 1), 3), (nn.ReLU(), 4)]
)
def test_channels_come_second(module: nn.Module, dim: int) -> None:
    values = torch.randn(2, 3, *(5, 6)[: dim - 2]).repeat(4, *[1] * (dim - 1))
    values[:, 1] = 0
    one = measure_activation(values, module)
    assert (one.units, one.dead) == (3, 1)


def test_features_come_last_elsewhere() -> None:
    values = torch.randn(2, 16, 6)
    values[:, 1] = 0  # a token of zeros, no unit
    one = measure_activation(values, nn.Linear(6, 6))
    assert (one.units, one.dead) == (6, 0)


@pytest.mark.parametrize(
    ("module", "values", "share"),
    [
        (nn.Tanh(), [-1.0, 1.0, 0.0, 0.5], 0.5),
        (nn.Sigmoid(), [0.001, 1.0, 0.5, 0.999], 0.75),
        (nn.Softmax(-1), [0.0, 0.0, 0.0, 1.0], 0.25),
        (nn.Identity(), [-1.0, 1.0, 0.0, 0.5], 0.5),
        (nn.Identity(), [-3.0, 1.0, 0.0, 0.5], None),
        (nn.Identity(), [-0.1, 0.1, 0.0, 0.5], None),
    ],
)
def test_saturation(module: nn.Module, values: list[float], share: float | None) -> None:
    assert measure_activation(torch.tensor([values] * 16), module).saturated == share


def test_outlying_units() -> None:
    torch.manual_seed(0)
    values = torch.randn(64, 40)
    assert measure_activation(values, nn.Identity()).outliers == ()
    values[:, 7] *= 50
    values[3, 9] = -200
    one = measure_activation(values, nn.Identity())
    assert [unit for unit, _ in one.outliers] == [9, 7]
    assert "far above the others" in remarks([("x", one)])[0]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.0),
        torch.zeros(0, 4),
        torch.ones(20, 4, dtype=torch.bool),
        torch.arange(80).reshape(20, 4),
        torch.randn(20, 4, dtype=torch.complex64),
        torch.randn(20, 4, dtype=torch.bfloat16),
        torch.full((20, 4), torch.nan),
        torch.full((20, 4), torch.inf),
        torch.randn(4, 20).t(),
        torch.randn(1, 4).expand(20, 4),
        torch.randn(20, 4, device="meta"),
        torch.randn(20, 4).to_sparse(),
        torch.nested.nested_tensor([torch.randn(20, 4)], layout=torch.jagged),
    ],
    ids=range(13),
)
def test_any_tensor_gets_an_answer(tensor: torch.Tensor) -> None:
    one = measure_activation(tensor, nn.Identity())
    assert not one.note.startswith("not looked at by unit")
    assert one.units is not None or one.note


def test_a_large_output_is_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerstep.layers.activations.MOST_READ", 400)
    values = torch.randn(100, 10) + 5
    values[:, 3] = 0
    one = measure_activation(values, nn.Identity())
    assert (one.seen, one.dead) == (34, 1)
    assert one.note == "units at one position in 3"
    assert one.summary.stats is not None and one.summary.stats.count == 1000


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.act = nn.ReLU()
        self.head = nn.Linear(8, 4)
        with torch.no_grad():
            self.conv.bias[:4] = -1e3  # half of the channels never fire

    def forward(self, x: torch.Tensor) -> Any:
        return {"logits": self.head(self.act(self.conv(x)).mean((2, 3))), "n": 3}


def test_the_table_is_of_the_layers_in_view() -> None:
    torch.manual_seed(0)
    lines = [
        "break Net",
        "step 4",
        "activations",
        "activations --sort dead",
        "activations conv",
        "activations * x",
    ]
    lines += ["activations --sort mood", "activations type:Linear --sort=std"]
    answers = ask(Net(), lines, torch.randn(2, 3, 8, 8))
    table = answers["activations"]
    assert list(cells(table, "shape").items())[:2] == [("Net", "2×4"), ("conv", "2×8×6×6")]
    dead = cells(table, "dead")
    assert (dead["act"], dead["conv"], dead["head"]) == ("4/8", "0", "-")
    assert isinstance(table, Table)
    assert "act: 4 of 8 units dead (50%)" in table.note
    assert next(iter(cells(answers["activations --sort dead"], "dead"))) == "act"
    assert list(cells(answers["activations conv"], "zero").values()) == ["0%"]
    assert list(cells(answers["activations type:Linear --sort=std"], "std")) == ["head"]
    for wrong in ("activations * x", "activations --sort mood"):
        answer = answers[wrong]
        assert isinstance(answer, Notice) and answer.level == "error"


def test_nothing_in_view_is_said() -> None:
    answers = ask(Net(), ["break conv", "continue", "activations head"], torch.randn(2, 3, 8, 8))
    answer = answers["activations head"]
    assert isinstance(answer, Notice) and "nothing of head is in view" in answer.text
