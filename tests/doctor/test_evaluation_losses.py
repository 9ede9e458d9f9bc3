"""The loss of an evaluation is seen however it is computed, and torch is as before afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from layerstep.doctor.watch import watching

Criterion = Callable[[Tensor, Tensor], Tensor]


class Halved(nn.Module):
    def forward(self, given: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(given, target) / 2


def _losses(evaluate: Criterion) -> list[tuple[float | None, float]]:
    """The loss that was seen in each evaluation, and its mean over two halves of the samples."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    true = []
    with watching("extreme") as doctor:
        for _ in range(3):
            x = torch.randn(8, 4)
            loss = F.mse_loss(model(x), x[:, :1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                true.append(float(F.mse_loss(nn.functional.linear(x, model.weight, model.bias), x[:, :1])))
                for part in x.split(4):
                    evaluate(model(part), part[:, :1])
        doctor.doctor.finish()
    seen = [each.loss for each in doctor.doctor.diagnosis.run.evaluations]
    return list(zip(seen, true, strict=True))


@pytest.mark.parametrize(
    ("evaluate", "factor"),
    [
        (F.mse_loss, 1.0),
        (mse_loss, 1.0),
        (nn.MSELoss(), 1.0),
        (lambda given, target: F.mse_loss(given, target, reduction="sum"), 1.0),
        (nn.MSELoss(reduction="sum"), 1.0),
        (Halved(), 0.5),
    ],
    ids=["function", "its imported name", "module", "sum", "module of a sum", "module of its own"],
)
def test_the_loss_of_an_evaluation_is_seen(evaluate: Criterion, factor: float) -> None:
    for seen, true in _losses(evaluate):
        assert seen == pytest.approx(factor * true, rel=1e-5)


def test_a_measure_of_another_kind_is_no_loss() -> None:
    def both(given: Tensor, target: Tensor) -> Tensor:
        F.l1_loss(given, target)
        return F.mse_loss(given, target)

    for seen, true in _losses(both):
        assert seen == pytest.approx(true, rel=1e-5)


def test_torch_is_as_before_when_training_goes_on() -> None:
    """A function of the doctor stands there in evaluations only."""
    before, during, training = torch._C._nn.mse_loss, [], []

    def evaluate(given: Tensor, target: Tensor) -> Tensor:
        during.append(torch._C._nn.mse_loss)
        return F.mse_loss(given, target)

    model = nn.Linear(4, 1)
    model.register_forward_hook(
        lambda *_: training.append(torch._C._nn.mse_loss) if torch.is_grad_enabled() else None
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watching("extreme"):
        for _ in range(3):
            x = torch.randn(8, 4)
            F.mse_loss(model(x), x[:, :1]).backward()
            optimizer.step()
            with torch.no_grad():
                evaluate(model(x), x[:, :1])
    assert training == [before] * 3
    assert before not in during
    assert torch._C._nn.mse_loss is before
