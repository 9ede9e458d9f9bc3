"""The doctor at its closest, with every probe run in the middle, leaves no bit of a training changed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep.doctor.probe import all_probes, run_probe
from layerstep.doctor.watch import Watch, watching
from token_models import TOKENS, TinyGPT, text

STEPS, MIDDLE = 200, 100
Batch = Callable[[], tuple[Tensor, Tensor]]


def _mlp() -> tuple[nn.Module, Batch]:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))
    return model, lambda: _vectors((16, 8))


def _cnn() -> tuple[nn.Module, Batch]:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.2),
        nn.Flatten(),
        nn.Linear(4 * 36, 3),
    )
    return model, lambda: _vectors((16, 1, 8, 8))


def _vectors(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    x = torch.randn(shape)
    return x, x.flatten(1)[:, :3].argmax(1)


def _gpt() -> tuple[nn.Module, Batch]:
    def batch() -> tuple[Tensor, Tensor]:
        tokens = text(4)
        return tokens[:, :-1], tokens[:, 1:]

    return TinyGPT(), batch


class Reader(nn.Module):
    """An LSTM with dropout between its layers, which also draws from numpy and `random`."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 16, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(16, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        noise = np.random.rand() + random.random()
        return self.head(self.lstm(self.embedding(tokens))[0]) * (1 + 1e-3 * noise)  # type: ignore[no-any-return]


def _lstm() -> tuple[nn.Module, Batch]:
    return Reader(), _gpt()[1]


def _train(make: Callable[[], tuple[nn.Module, Batch]], middle: Callable[[], None]) -> Iterator[object]:
    """What a training leaves behind, bit by bit."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model, batch = make()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(STEPS):
        x, y = batch()
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()
        if step == MIDDLE:
            middle()
    yield from (hashlib.sha256(value.numpy().tobytes()).hexdigest() for value in model.state_dict().values())
    yield from (p.grad.sum().item() for p in model.parameters() if p.grad is not None)
    yield torch.get_rng_state().sum().item(), random.getstate(), np.random.rand()


@pytest.mark.parametrize("make", [_mlp, _cnn, _gpt, _lstm], ids=lambda make: make.__name__[1:])
def test_two_hundred_steps_with_all_probes_are_bit_equal(
    make: Callable[[], tuple[nn.Module, Batch]],
) -> None:
    torch.set_num_threads(1)
    bare = list(_train(make, lambda: None))
    ran: list[str] = []

    def probe_all(watch: Watch) -> None:
        for each in all_probes():
            assert run_probe(watch.doctor.session, each).text
            ran.append(each.name)

    def watched() -> list[object]:
        with watching("extreme") as watch:
            seen = []
            for each in _train(make, lambda: probe_all(watch)):
                seen.append(each)
                if len(seen) == STEPS:
                    assert watch.doctor.session.run.training.count == STEPS, "copies take no training steps"
                    assert len(watch.doctor.session.run.training.optimizers) == 1
            assert watch.doctor.session.run.is_attached, "nothing of the doctor's failed"
            return seen

    assert watched() == bare
    assert ran == [each.name for each in all_probes()]
