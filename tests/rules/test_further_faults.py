"""Faults that a rule knows besides the one of its own case, with the place that the finding names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep.doctor.finding import Finding
from layerstep.doctor.watch import watching

Criterion = Callable[[Tensor, Tensor], Tensor]


def _net(width: int = 8, out: int = 1, hidden: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))


def _findings(train: Callable[[], object]) -> list[Finding]:
    torch.manual_seed(0)
    with watching("extreme") as doctor:
        train()
    return doctor.findings


def _fit(
    x: Tensor,
    y: Tensor,
    *,
    model: nn.Module | None = None,
    criterion: Criterion = F.mse_loss,
    optimizer: torch.optim.Optimizer | None = None,
    held_back: int = 0,
    epochs: int = 10,
) -> None:
    model = model if model is not None else _net(x.shape[1], y.shape[1] if y.ndim > 1 else 4)
    optimizer = optimizer or torch.optim.Adam(model.parameters(), 3e-3)
    count = len(x) - held_back
    for _ in range(epochs):
        for part in torch.randperm(count).split(20):
            loss = criterion(model(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if held_back:
            with torch.no_grad():
                criterion(model(x[count:]), y[count:])


def _first(findings: list[Finding]) -> Finding:
    assert findings, "nothing was found"
    return findings[0]


def test_one_target_far_from_all_others_is_named_as_the_cause() -> None:
    def train() -> None:
        x = torch.randn(300, 8)
        y = x[:, :1].clone()
        y[150] = 1e6
        model = _net()
        _fit(x, y, model=model, optimizer=torch.optim.SGD(model.parameters(), 0.02))

    first = _first(_findings(train))
    assert first.rule == "loss-spike" and first.confidence == "exact"
    assert "the target of sample" in first.text


def test_an_outlier_among_the_inputs_is_named_too() -> None:
    def train() -> None:
        x = torch.randn(300, 8)
        y = x[:, :1].clone()
        x[150, 3] = 1e5
        model = _net()
        _fit(x, y, model=model, optimizer=torch.optim.SGD(model.parameters(), 0.02))

    first = _first(_findings(train))
    assert first.rule == "loss-spike" and "input 0 of sample" in first.text


def test_the_same_batch_in_every_step_is_a_note() -> None:
    def train() -> None:
        x = torch.randn(20, 8)
        model = _net()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(60):
            loss = F.mse_loss(model(x.clone()), x[:, :1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    first = _first(_findings(train))
    assert first.rule == "repeated-samples" and first.severity == "info" and first.where.module == "model"


def test_one_sample_that_fills_the_batch_explains_that_all_labels_are_equal() -> None:
    def train() -> None:
        data = torch.randn(100, 8)
        model = _net(out=4)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for at in range(80):
            x = data[at : at + 1].expand(32, 8).clone()
            loss = F.cross_entropy(model(x), torch.ones(32, dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    findings = _findings(train)
    assert _first(findings).rule == "repeated-samples"
    assert [each.caused_by for each in findings if each.rule == "constant-labels"] == ["repeated-samples"]


def test_weights_that_begin_at_one_value_are_a_note_though_biases_tell_them_apart() -> None:
    def train() -> None:
        x = torch.randn(200, 8)
        model = _net()
        nn.init.constant_(model[0].weight, 0.1)
        _fit(x, x.sum(1, keepdim=True), model=model)

    findings = [each for each in _findings(train) if each.rule == "units-alike"]
    assert [each.severity for each in findings] == ["info"]
    assert findings[0].where.parameters == ("0.weight",)


def test_targets_of_one_number_are_a_note() -> None:
    first = _first(_findings(lambda: _fit(torch.randn(200, 8), torch.full((200, 1), 0.1))))
    assert first.rule == "constant-labels" and first.severity == "info"
    assert "0.1" in first.text


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_labels_of_other_rows_show_in_the_evaluations(kind: str) -> None:
    def train() -> None:
        x = torch.randn(900, 8)
        other = torch.randperm(900)
        y = x[:, :4].argmax(1)[other] if kind == "classes" else x[:, :1].sign()[other]
        _fit(x, y, criterion=F.cross_entropy if kind == "classes" else F.mse_loss, held_back=300, epochs=5)

    first = _first(_findings(train))
    assert first.rule == "not-learning" and first.where.line
    assert "evaluation loss" in first.text


def test_a_model_that_knows_few_samples_by_heart_is_noted() -> None:
    def train() -> None:
        x = torch.randn(340, 8)
        model = _net(out=4, hidden=128)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        _fit(
            x,
            x[:, :4].argmax(1),
            model=model,
            optimizer=optimizer,
            criterion=F.cross_entropy,
            held_back=300,
            epochs=40,
        )

    assert "overfitting" in [each.rule for each in _findings(train)]


def test_evaluations_that_only_scatter_are_no_overfitting() -> None:
    """Each evaluation sees ten samples: its loss goes up and down by a half."""

    def train() -> None:
        x = torch.randn(2000, 8)
        y = x[:, :1] + 0.5 * torch.randn(2000, 1)
        model = _net()
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for at in range(60):
            for part in torch.randperm(1000).split(200):
                loss = F.mse_loss(model(x[part]), y[part])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                some = slice(1000 + 10 * at, 1010 + 10 * at)
                F.mse_loss(model(x[some]), y[some])

    assert "overfitting" not in [each.rule for each in _findings(train)]


def test_dead_units_are_those_of_the_layer_before_the_function() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1)
            nn.init.constant_(self.second.bias, -50.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.second(torch.relu(self.first(x)))))

    def train() -> None:
        x = torch.randn(200, 8)
        _fit(x, x[:, :1], model=Net())

    first = _first(_findings(train))
    assert first.rule == "dead-units"
    assert first.where.parameters == ("second.weight", "second.bias")


def test_a_group_with_a_rate_of_zero_is_a_note() -> None:
    def train() -> None:
        x = torch.randn(200, 8)
        model = _net()
        groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
        _fit(x, x[:, :1], model=model, optimizer=torch.optim.SGD(groups, 0.05))

    found = [each for each in _findings(train) if each.rule == "learning-rate-zero"]
    assert [(each.severity, each.where.parameters) for each in found] == [("info", ("0.weight", "0.bias"))]


def test_a_decoder_that_begins_as_the_transpose_of_its_encoder_was_to_be_tied() -> None:
    def train() -> None:
        x = torch.randn(200, 8)
        model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Tanh(), nn.Linear(4, 8, bias=False))
        model[2].weight = nn.Parameter(model[0].weight.detach().t().clone())
        _fit(x, x, model=model)

    first = _first(_findings(train))
    assert first.rule == "tied-weights-apart"
    assert first.where.parameters == ("0.weight", "2.weight")


def test_a_signal_that_grows_a_little_in_each_layer_is_seen() -> None:
    def train() -> None:
        layers: list[nn.Module] = []
        for _ in range(6):
            layers += [nn.Linear(32, 32), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(32, 4))
        for parameter in model.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter)
        x = torch.randn(200, 32)
        _fit(x, x[:, :4].argmax(1), model=model, criterion=F.cross_entropy)

    assert _first(_findings(train)).rule == "init-scale"


def test_a_nan_is_not_the_consequence_of_what_comes_after_it() -> None:
    """The weights still move for some steps in which the loss is NaN already."""

    def train() -> None:
        x = torch.randn(300, 8)
        model = nn.Sequential(*_net(), nn.ReLU())
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        _fit(
            x,
            (x[:, :1] > 0).float(),
            model=model,
            optimizer=optimizer,
            criterion=lambda out, y: -(y * out.log() + (1 - y) * (1 - out).log()).mean(),
        )

    assert _first(_findings(train)).rule == "non-finite"


def test_a_sum_over_no_labels_that_is_divided_by_their_number_is_the_cause_of_the_nan() -> None:
    def train() -> None:
        x = torch.randn(200, 8)

        def mean_of_counted(out: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(out, y, reduction="sum") / (y != -100).sum()

        _fit(x, torch.full((200,), -100), criterion=mean_of_counted)

    assert _first(_findings(train)).rule == "labels-all-ignored"


def test_batches_that_are_added_up_are_seen_through_a_gradient_scaler() -> None:
    def train() -> None:
        model = _net()
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(30):
            optimizer.zero_grad()
            for _ in range(4):
                x = torch.randn(8, 8)
                scaler.scale(F.mse_loss(model(x), x[:, :1])).backward()
            scaler.step(optimizer)
            scaler.update()

    first = _first(_findings(train))
    assert first.rule == "accumulation-undivided" and first.severity == "warning"
