"""The same faults in other loops: convolutions, recurrent layers, padded texts, scalers, trainers."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep.doctor.finding import Finding, Severity
from layerstep.doctor.watch import Watch, watching


def _watched(train: Callable[[], object]) -> Watch:
    torch.manual_seed(0)
    with watching("extreme") as doctor:
        train()
    return doctor


def _findings(train: Callable[[], object]) -> dict[str, Finding]:
    return {each.rule: each for each in _watched(train).findings}


def _line(finding: Finding) -> str:
    return linecache.getline(finding.where.file, finding.where.line).strip()


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _net(width: int = 8, out: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, out))


@pytest.mark.parametrize("times", [1, 2])
def test_a_normalisation_by_numbers_of_ones_own_is_noted_when_it_is_applied_twice(times: int) -> None:
    def train() -> None:
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 2))
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(12):
            x = (torch.randn(32, 3, 12, 12) * 0.27 + 0.42).clamp(0, 1)
            for _ in range(times):
                x = (x - 0.43) / 0.25
            _step(optimizer, F.cross_entropy(model(x), torch.arange(32) % 2))

    found = _findings(train).get("normalised-twice")
    assert (found is not None) == (times == 2)
    if found is not None:
        assert found.severity == Severity.INFO
        assert found.where.module == "0"


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_softmax_over_samples_or_time_is_told_from_one_over_the_classes(dim: int) -> None:
    def train() -> None:
        model = _net()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(12):
            x = torch.randn(16, 7, 8)
            scores = model(x).log_softmax(dim)
            _step(optimizer, F.nll_loss(scores.flatten(0, 1), x[..., :3].argmax(-1).flatten()))

    assert ("softmax-over-batch" in _findings(train)) == (dim != 2)


@pytest.mark.parametrize("gain", [1.0, 2.5])
def test_recurrent_weights_that_are_too_large_are_named(gain: float) -> None:
    def train() -> None:
        rnn = nn.RNN(8, 16, batch_first=True, nonlinearity="relu")
        nn.init.orthogonal_(rnn.weight_hh_l0, gain)
        model = nn.ModuleList([rnn, nn.Linear(16, 3)])
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(12):
            x = torch.randn(16, 14, 8)
            _step(optimizer, F.cross_entropy(model[1](rnn(x)[0][:, -1]), x[:, -1, :3].argmax(1)))

    found = _findings(train).get("init-scale")
    assert (found is not None) == (gain > 1)
    if found is not None:
        assert found.where.parameters == ("0.weight_hh_l0",)


def test_a_schedule_that_counts_batches_as_epochs_is_the_cause_of_a_loss_that_stays() -> None:
    def train() -> None:
        model = _net()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        for _ in range(170):
            x = torch.randn(32, 8)
            _step(optimizer, F.cross_entropy(model(x), x[:, :3].argmax(1)))
            scheduler.step()

    first = _watched(train).findings[0]
    assert first.rule == "learning-rate-zero"
    assert "next to nothing" in first.text


def test_a_schedule_that_ends_at_zero_is_not_noted() -> None:
    def train() -> None:
        model = _net()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
        for _ in range(200):
            x = torch.randn(32, 8)
            _step(optimizer, F.cross_entropy(model(x), x[:, :3].argmax(1)))
            scheduler.step()

    assert "learning-rate-zero" not in _findings(train)


def test_the_loss_of_steps_that_are_not_looked_at_has_the_scale_of_those_that_are() -> None:
    """A scaler and a division by the batches that are added up: both are taken out, in every step."""

    def train() -> None:
        model = _net()
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        x = torch.randn(32, 8)
        for at in range(120):
            loss = F.cross_entropy(model(x), x[:, :3].argmax(1)) / 2
            scaler.scale(loss).backward()
            if at % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    losses = next(iter(_watched(train).doctor.diagnosis.run.optimizers.values())).loss.values()
    assert len(losses) == 60
    assert max(losses) < 1.2 * min(losses)


def test_a_sum_that_is_divided_by_the_number_of_labels_is_judged_as_a_mean() -> None:
    def train() -> None:
        model = _net()
        nn.init.normal_(model[2].weight, std=40.0)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(12):
            x = torch.randn(16, 8)
            labels = x[:, :3].argmax(1)
            _step(optimizer, F.cross_entropy(model(x), labels, reduction="sum") / len(labels))

    found = _findings(train)
    assert "bad-initial-loss" in found
    assert "loss-scales-with-batch" not in found


LIBRARY = """
class Trainer:
    def __init__(self, step):
        self.step = step

    def train(self):
        for _ in range(12):
            optimizer, loss = self.step()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def test_a_library_that_calls_backward_is_named_by_the_line_that_calls_it() -> None:
    """Not by the line that made the library's object."""
    space: dict[str, Any] = {}
    exec(compile(LIBRARY, torch.__file__, "exec"), space)
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step() -> tuple[torch.optim.Optimizer, Tensor]:
        x = torch.randn(16, 8)
        return optimizer, F.cross_entropy(model(x).softmax(-1), x[:, :3].argmax(1))

    def train() -> None:
        trainer = space["Trainer"](step)
        trainer.train()

    assert _line(_findings(train)["loss-input-is-probability"]) == "trainer.train()"


def _padded(rows: list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def test_texts_are_known_again_with_another_padding() -> None:
    texts = [torch.randint(1, 50, (int(length),)) for length in torch.randint(5, 15, (64,))]

    def train() -> None:
        model = nn.Sequential(nn.Embedding(50, 8, padding_idx=0), nn.Linear(8, 50))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(4):
            for part in torch.randperm(64).split(8):
                batch = _padded([texts[at] for at in part])
                _step(optimizer, F.cross_entropy(model(batch).flatten(0, 1), batch.flatten()))
            model.eval()
            with torch.no_grad():
                model(_padded(texts))
            model.train()

    assert "evaluated-on-training-data" in _findings(train)


def _added_up(is_repeated: bool) -> None:
    """Two batches a step, of two workers that may have drawn the same."""
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(20):
        one = torch.randn(16, 8)
        for x in (one, one.clone() if is_repeated else torch.randn(16, 8)):
            (F.cross_entropy(model(x), x[:, :3].argmax(1)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("is_repeated", [False, True])
def test_equal_batches_are_seen_within_a_step_that_adds_them_up(is_repeated: bool) -> None:
    assert ("repeated-samples" in _findings(lambda: _added_up(is_repeated))) == is_repeated


def test_a_few_samples_that_fill_all_batches_are_noted() -> None:
    def train() -> None:
        model = _net(16)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        rows = torch.randn(12, 16)
        for _ in range(60):
            x = rows[torch.randint(0, 12, (16,))]
            _step(optimizer, F.cross_entropy(model(x), x[:, :3].argmax(1)))

    assert _findings(train)["repeated-samples"].severity == Severity.INFO


@pytest.mark.parametrize("is_loaded", [False, True])
def test_one_batch_is_the_cause_of_overfitting_only_if_it_is_made_again_each_time(is_loaded: bool) -> None:
    """A program that holds all its data in one tensor knows that it trains on them."""

    def train() -> None:
        x, y = torch.randn(220, 20), torch.randint(0, 3, (220,))
        model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 3))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        own, labels, other, others = x[:20], y[:20], x[20:], y[20:]
        for at in range(200):
            batch = own.clone() if is_loaded else own
            _step(optimizer, F.cross_entropy(model(batch), labels))
            if at % 5 == 4:
                with torch.no_grad():
                    F.cross_entropy(model(other), others)

    findings = _findings(train)
    assert findings["overfitting"].severity == Severity.WARNING
    assert findings["overfitting"].caused_by == ("repeated-samples" if is_loaded else "")
    assert findings["repeated-samples"].severity == (Severity.WARNING if is_loaded else Severity.INFO)


def test_a_rate_that_rounds_away_is_not_a_parameter_that_is_left_out() -> None:
    def train() -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
        optimizer = torch.optim.AdamW(model.parameters(), 4e-10, weight_decay=0.0, fused=True)
        for _ in range(40):
            x = torch.randn(32, 8)
            _step(optimizer, F.cross_entropy(model(x), x[:, :3].argmax(1)))

    found = _findings(train)
    assert "update-too-small" in found
    assert "never-updated" not in found


def _slowly(rate: float) -> None:
    model = _net()
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    nn.init.zeros_(model[2].weight)
    x = torch.randn(4096, 8)
    for at in range(300):
        part = x[at % 8 * 512 :][:512]
        _step(optimizer, F.cross_entropy(model(part), part[:, :3].argmax(1)))
        if at % 50 == 49:
            with torch.no_grad():
                F.cross_entropy(model(x[-512:]), x[-512:, :3].argmax(1))


def test_a_loss_that_falls_slowly_and_steadily_gets_a_note_at_most() -> None:
    assert not [each for each in _watched(lambda: _slowly(2e-5)).findings if each.severity != Severity.INFO]


@pytest.mark.parametrize("learns", [False, True])
def test_binary_cross_entropy_is_compared_with_what_guessing_gives(learns: bool) -> None:
    """Soft targets: no model gets below their entropy, and one that is near it has learned all."""

    def train() -> None:
        model = _net(8, 4)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(260):
            x = torch.randn(64, 8)
            seen = x if learns else torch.randn(64, 8)
            target = (seen[:, :4] > 0).float() * 0.4 + 0.3
            _step(optimizer, F.binary_cross_entropy_with_logits(model(x), target))

    assert ("not-learning" in _findings(train)) != learns
