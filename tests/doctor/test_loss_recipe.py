"""A loss can be made again from the graph that autograd has recorded, or it is said that it cannot."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep.doctor.training_calls import TrainingCalls
from layerstep.tensors.observing import observing

CLASSES = 7
LABELS = torch.randint(0, CLASSES, (2, 5))
VALUES = torch.randn(2, 5, CLASSES)
SHARES = torch.rand(2, 5, CLASSES)
WEIGHTS = torch.rand(CLASSES)
flat = LABELS.view(-1)

LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "cross_entropy": lambda out: F.cross_entropy(out.view(-1, CLASSES), flat),
    "weighted": lambda out: F.cross_entropy(out.view(-1, CLASSES), flat, weight=WEIGHTS, ignore_index=3),
    "shifted": lambda out: F.cross_entropy(
        out[:, :-1].reshape(-1, CLASSES), LABELS[:, 1:].reshape(-1), reduction="sum"
    ),
    "channels": lambda out: F.cross_entropy(out.transpose(1, 2), LABELS),
    "smoothed": lambda out: F.cross_entropy(out.view(-1, CLASSES), flat, label_smoothing=0.1),
    "soft": lambda out: F.cross_entropy(out.view(-1, CLASSES), SHARES.view(-1, CLASSES)),
    "nll": lambda out: F.nll_loss(out.log_softmax(-1).view(-1, CLASSES), flat),
    "gathered": lambda out: -out.log_softmax(-1).gather(-1, LABELS[..., None]).mean(),
    "mse": lambda out: F.mse_loss(out[:, -1], VALUES[:, -1]),
    "by hand": lambda out: ((out - VALUES) ** 2).mean(),
    "from the target": lambda out: (VALUES - out).pow(2).sum(-1).mean(),
    "a product": lambda out: ((VALUES - out) * (VALUES - out)).sum() / 2,
    "l1": lambda out: F.l1_loss(out, VALUES),
    "smooth_l1": lambda out: F.smooth_l1_loss(out.squeeze(), VALUES, beta=0.3),
    "huber": lambda out: F.huber_loss(out[:, :, 0], VALUES[:, :, 0], delta=0.5),
    "bce": lambda out: F.binary_cross_entropy(out.sigmoid(), SHARES, reduction="sum") / 4,
    "bce_logits": lambda out: F.binary_cross_entropy_with_logits(out, SHARES, pos_weight=WEIGHTS),
    "scaled": lambda out: F.mse_loss(out, VALUES) * 1024 / 4,
}


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(CLASSES, CLASSES)


def _noted(model: nn.Module, loss_of: Callable[[Tensor], Tensor]) -> tuple[TrainingCalls, Tensor]:
    calls, x = TrainingCalls(), torch.randn(2, 5, CLASSES)
    with observing():
        calls.begins(model, (x,), {}, step=1, autocast={})
    out = model(x)
    with observing():
        calls.ends(model, out)
    loss = loss_of(out)
    with observing():
        calls.backward(loss)
    return calls, loss


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_made_again_for_another_output(name: str) -> None:
    model = _model()
    calls, _ = _noted(model, LOSSES[name])
    assert calls.last is not None and calls.last.recipe is not None, calls.last and calls.last.trouble
    other = model(torch.randn(2, 5, CLASSES))
    made = calls.last.recipe.loss([other], dict(model.named_parameters()))
    torch.testing.assert_close(made, LOSSES[name](other), rtol=1e-5, atol=1e-6)


def test_a_penalty_on_the_parameters_uses_those_of_the_copy() -> None:
    model = _model()

    def loss_of(out: Tensor, model: nn.Module = model) -> Tensor:
        return F.mse_loss(out, VALUES) + 0.1 * sum(p.pow(2).sum() for p in model.parameters())

    calls, _ = _noted(model, loss_of)
    assert calls.last is not None and calls.last.recipe is not None
    twice = {name: p * 2 for name, p in model.named_parameters()}
    out = torch.zeros(2, 5, CLASSES)
    made = calls.last.recipe.loss([out], twice)
    expected = F.mse_loss(out, VALUES) + 0.1 * sum(p.pow(2).sum() for p in twice.values())
    torch.testing.assert_close(made, expected)


@pytest.mark.parametrize(
    ("loss_of", "why"),
    [
        (lambda out: F.kl_div(out.log_softmax(-1), SHARES, reduction="sum"), "Sub"),
        (lambda out: torch.linalg.svdvals(out).sum(), "LinalgSvd"),
        (lambda out: F.mse_loss(nn.Parameter(torch.ones(3)), torch.zeros(3)), "no parameter of the model"),
        (lambda out: out.masked_fill(LABELS[..., None] > 2, 5.0).mean(), "made again it is"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_cannot_be_repeated_says_why(loss_of: Callable[[Tensor], Tensor], why: str) -> None:
    calls, _ = _noted(_model(), loss_of)
    assert calls.last is not None and calls.last.recipe is None
    assert why in calls.last.trouble


def test_a_model_that_returns_its_loss() -> None:
    class WithLoss(nn.Linear):
        def forward(self, x: Tensor) -> Any:  # type: ignore[override]
            out = super().forward(x)
            return {"loss": F.mse_loss(out, VALUES), "logits": out}

    model, calls = WithLoss(CLASSES, CLASSES), TrainingCalls()
    x = torch.randn(2, 5, CLASSES)
    with observing():
        calls.begins(model, (x,), {}, step=1, autocast={})
    out = model(x)
    with observing():
        calls.ends(model, out)
        calls.backward(out["loss"] / 4)
    assert calls.last is None, "nothing is read without a graph"
    with observing():
        calls.begins(model, (x,), {}, step=1, autocast={})
        calls.ends(model, out)
    divided = out["loss"] / 4
    with observing():
        calls.backward(divided)
    assert calls.last is not None and calls.last.recipe is not None
    made = calls.last.recipe.loss([torch.tensor(8.0), out["logits"]], {})
    assert float(made) == 2.0


def test_nothing_of_the_run_is_kept_alive() -> None:
    model = _model()
    calls, loss = _noted(model, LOSSES["cross_entropy"])
    node, module = weakref.ref(loss), weakref.ref(model)
    del loss, model
    assert node() is None and module() is None
    assert calls.last is not None and calls.last.reference() is None
