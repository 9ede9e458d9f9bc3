"""Small data sets with something to learn, and the plain loop that most healthy trainings share."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["batches", "blobs", "fit", "mlp", "pictures", "sentences", "table", "waves"]


def blobs(count: int = 640, features: int = 20, classes: int = 5, spread: float = 1.0):
    """Clusters, one for each class."""
    y = torch.randint(0, classes, (count,))
    x = torch.randn(classes, features)[y] * 1.5 + spread * torch.randn(count, features)
    return x / x.std(), y


def table(count: int = 640, features: int = 8, noise: float = 0.1):
    """A smooth function of some columns, with a standard deviation of about one."""
    x = torch.randn(count, features)
    y = torch.sin(x[:, 0]) + 0.5 * x[:, 1] + 0.4 * x[:, 2] * x[:, 3] + noise * torch.randn(count)
    return x, y.unsqueeze(1)


def pictures(count: int = 480, classes: int = 4, side: int = 12, channels: int = 1):
    """Stripes whose direction is the class, standardised."""
    y = torch.randint(0, classes, (count,))
    grid = torch.linspace(0, 9, side)
    angle = y.float() / classes * 3.14
    wave = torch.cos(angle)[:, None, None] * grid[None, :, None] + torch.sin(angle)[:, None, None] * grid
    x = torch.sin(wave + 6 * torch.rand(count, 1, 1))[:, None].repeat(1, channels, 1, 1)
    return x + 0.3 * torch.randn(count, channels, side, side), y


def sentences(count: int = 480, words: int = 30, length: int = 12, classes: int = 4):
    """Rows of words; the class is set by which of some words occur."""
    x = torch.randint(classes * 3, words, (count, length))
    y = torch.randint(0, classes, (count,))
    for place in range(3):
        x[torch.arange(count), torch.randint(0, length, (count,))] = y * 3 + place
    return x, y


def waves(count: int = 480, length: int = 24):
    """Sine waves of a random phase and frequency; the last value is to be told from the others."""
    time = torch.arange(length + 1) * 0.4
    x = torch.sin(time * (0.5 + torch.rand(count, 1)) + 6.28 * torch.rand(count, 1))
    return x[:, :-1, None], x[:, -1:]


def mlp(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for inside, outside in itertools.pairwise(sizes):
        layers += [nn.Linear(inside, outside), activation()]
    return nn.Sequential(*layers[:-1])


def batches(*tensors: Tensor, size: int = 32, steps: int = 160, shuffle: bool = True):
    """Batches of these rows, epoch after epoch, until `steps` were given."""
    loader = DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, drop_last=True)
    given = 0
    while given < steps:
        for batch in loader:
            yield batch
            given += 1
            if given >= steps:
                return


def fit(model, optimizer, data, steps, *, loss_fn=F.cross_entropy, scheduler=None, size=32):
    """The plain loop: returns the losses."""
    losses = []
    model.train()
    for x, y in batches(*data, size=size, steps=steps):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses
