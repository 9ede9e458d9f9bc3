"""Probes answer their question on a healthy model and on one with the fault, and leave the run alone."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep import DebugConsole
from layerstep.doctor.probe import Found, all_probes, run_probe
from layerstep.doctor.watch import Watch, watching
from layerstep.errors import UserError
from layerstep.render.screen import to_text

Loss = Callable[[Tensor, Tensor], Tensor]
NAMES = [each.name for each in all_probes()]


class Classifier(nn.Module):
    """A small model whose parts a test can replace."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.middle = middle or nn.ReLU()
        self.last = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))  # type: ignore[no-any-return]


def _labels(x: Tensor) -> Tensor:
    return x[:, :3].argmax(1)


def _train(
    model: nn.Module,
    *,
    loss_of: Loss = F.cross_entropy,
    labels: Callable[[Tensor], Tensor] = _labels,
    lr: float = 1e-2,
    steps: int = 4,
) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters(), lr)
    for _ in range(steps):
        x = torch.randn(32, 8)
        loss = loss_of(model(x), labels(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return optimizer


def _run(watch: Watch, name: str) -> Found:
    [chosen] = [each for each in all_probes() if each.name == name]
    return run_probe(watch.doctor.session, chosen)


def _probed(name: str, model: nn.Module | None = None, **options: Any) -> Found:
    torch.manual_seed(0)
    model = model if model is not None else Classifier()
    with watching("extreme") as watch:
        _train(model, **options)
        return _run(watch, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_model_passes(name: str) -> None:
    found = _probed(name, steps=20)
    assert found.level == "good", found
    assert 10 <= found.step <= 20, "the first ten steps are looked at"
    assert found.seconds > 0 and found.did


def test_a_model_whose_output_is_constant_learns_nothing() -> None:
    class Flat(Classifier):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).softmax(0) * 0 + self.last.bias.softmax(0) * 1e-3

    found = _probed("overfit", Flat())
    assert found.level == "warn" and found.text.startswith("no: ")


def test_a_sum_over_the_batch_doubles() -> None:
    found = _probed("batch-twice", loss_of=lambda out, y: F.cross_entropy(out, y, reduction="sum"))
    assert found.level == "info" and "it is a sum" in found.text
    assert ("ratio", "2") in found.figures


def test_a_sum_divided_by_the_size_of_the_batch_is_a_mean() -> None:
    found = _probed("batch-twice", loss_of=lambda out, y: F.cross_entropy(out, y, reduction="sum") / len(y))
    assert found.level == "good" and "it is a mean" in found.text
    assert any("the divisor 32" in text for _, text in found.figures)


class FunctionalDropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x.relu(), 0.5)


def test_dropout_that_acts_in_evaluation_is_found_with_its_module() -> None:
    found = _probed("eval-twice", Classifier(FunctionalDropout()))
    assert found.level == "warn" and "it begins in middle" in found.text


def test_a_module_dropout_is_none_of_it() -> None:
    assert _probed("eval-twice", Classifier(nn.Dropout(0.5))).level == "good"


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0 + 1


def test_an_output_without_its_input() -> None:
    found = _probed("zero-input", Classifier(Nothing()))
    assert found.level == "warn" and "the same without the input" in found.text


def test_shuffled_labels_are_not_learned_faster() -> None:
    found = _probed("permuted-labels", steps=20, labels=lambda x: _labels(x)[torch.randperm(len(x))])
    assert found.level != "good", found.text


def test_equal_labels_cannot_be_permuted() -> None:
    with pytest.raises(UserError, match="all labels of the batch are equal"):
        _probed("permuted-labels", labels=lambda x: torch.ones(len(x), dtype=torch.long))


class Wrong(torch.autograd.Function):
    """The square with half of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * ctx.saved_tensors[0]  # type: ignore[no-any-return]


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Wrong.apply(x)  # type: ignore[no-any-return,no-untyped-call]


def test_a_wrong_backward_is_found_with_its_parameters() -> None:
    found = _probed("numeric-gradient", Classifier(Square()))
    assert found.level == "warn"
    named = dict(found.figures)
    assert "off by the factor 0.5" in named["first.weight"]
    assert "last.weight" not in named


@pytest.mark.parametrize(
    ("lr", "level", "words"),
    [
        (5.0, "warn", "on the loss rises"),
        (1e-7, "info", "far below"),
        (1e-2, "good", "the rate in use is 0.01"),
    ],
)
def test_the_learning_rate_in_use_is_compared(lr: float, level: str, words: str) -> None:
    torch.manual_seed(0)
    model = Classifier()
    with watching("extreme") as watch:
        optimizer = _train(model, steps=8)
        optimizer.param_groups[0]["lr"] = lr
        found = _run(watch, "learning-rate")
    assert found.level == level and words in found.text, found


class MakesLoss(Classifier):
    """As models of transformers do."""

    def forward(self, x: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        logits = super().forward(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_makes_its_own_loss(name: str) -> None:
    torch.manual_seed(0)
    model = MakesLoss()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with watching("extreme") as watch:
        for _ in range(20):
            x = torch.randn(32, 8)
            loss = model(x, labels=_labels(x))["loss"] / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert _run(watch, name).level == "good"


def test_a_loss_that_cannot_be_repeated_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="the loss is made in a way that cannot be repeated: LinalgSvd"):
        _probed("overfit", loss_of=lambda out, y: torch.linalg.svdvals(out).sum())


def test_a_probe_before_any_step() -> None:
    with watching() as watch, pytest.raises(UserError, match="no training step was looked at yet"):
        _run(watch, "overfit")


class KeepsAttention(nn.Module):
    """Keeps a tensor with a graph, which `copy.deepcopy` refuses."""

    def forward(self, x: Tensor) -> Tensor:
        self.kept = x.softmax(-1)
        return self.kept * x


def test_hooks_of_the_user_are_not_called_and_kept_tensors_do_not_matter() -> None:
    torch.manual_seed(0)
    model, calls = Classifier(KeepsAttention()), []
    model.first.register_forward_hook(lambda *_: calls.append("hook"))
    with watching("extreme") as watch:
        _train(model)
        before = len(calls)
        for name in NAMES:
            _run(watch, name)
    assert len(calls) == before


def test_a_weight_that_a_hook_computes_is_trained_in_the_copy() -> None:
    torch.manual_seed(0)
    model = Classifier()
    with pytest.warns(FutureWarning):
        model.last = nn.utils.weight_norm(model.last)  # type: ignore[no-untyped-call,assignment]
    assert _probed("overfit", model, steps=20).level == "good"


def test_the_command_lists_probes_and_shows_what_one_found() -> None:
    torch.manual_seed(0)
    model = Classifier()
    lines = ["doctor on", "break middle", "ignore 1 3", "continue", "probe", "probe overfit", "perturbed?"]
    console = DebugConsole(model, commands=[*lines, "probe overfitt", "quit"], output=io.StringIO())
    said: dict[str, str] = {}
    console.session.listen(lambda message: said.update({message.line: to_text(message.view, width=80)}))
    with pytest.raises(SystemExit), console:
        _train(model, steps=6)
    assert all(name in said["probe"] for name in NAMES)
    shown = said["probe overfit"]
    assert "yes: the loss goes from" in shown and "took" in shown and "training step 3" in shown
    assert said["perturbed?"].startswith("✓ no:")
    assert "did you mean overfit?" in said["probe overfitt"]


class Narrow(nn.Module):
    """Computes in single precision, whatever it is given, as norms of many language models do."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        return F.relu((wide / wide.float().pow(2).mean(-1, keepdim=True).sqrt()).to(x.dtype))


def test_single_precision_on_the_way_does_not_look_like_a_wrong_gradient() -> None:
    found = _probed("numeric-gradient", Classifier(Narrow()))
    assert found.level == "good", found


def test_a_model_whose_forward_is_a_function_that_holds_it_is_not_tried() -> None:
    """A copy would share the function, and run the parts of the original."""
    calls = []

    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(1)
            return x

    model = Classifier(Counts())
    forward = model.middle.forward
    model.middle.forward = lambda x: forward(x) * 0.5  # type: ignore[method-assign]
    with watching("extreme") as watch:
        _train(model)
        before = len(calls)
        with pytest.raises(UserError, match="`forward` of a Counts is a function that holds the model"):
            _run(watch, "eval-twice")
    assert len(calls) == before
