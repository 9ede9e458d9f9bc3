"""Schedules, epochs, validation and early stopping."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset, random_split

from benchmarks.diagnosis.healthy.data import batches, blobs, fit, mlp, table
from benchmarks.diagnosis.healthy.registered import healthy


def _scheduled(seed, steps, make, rate=0.1):
    torch.manual_seed(seed)
    model = mlp(20, 48, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    return fit(model, optimizer, blobs(), steps, scheduler=make(optimizer)), model


@healthy("cosine to zero")
def cosine(seed=0, steps=200):
    return _scheduled(seed, steps, lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, steps))


@healthy("cosine with warm restarts")
def restarts(seed=0, steps=240):
    return _scheduled(
        seed, steps, lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 40, 2)
    )


@healthy("triangular cyclic rate")
def cyclic(seed=0, steps=240):
    return _scheduled(
        seed, steps, lambda optimizer: lr_scheduler.CyclicLR(optimizer, 1e-3, 0.1, step_size_up=30)
    )


@healthy("linear warm-up from zero, then a linear fall to zero")
def linear(seed=0, steps=200):
    def factor(step: int) -> float:
        return min(step / 20, max(0.0, (steps - step) / (steps - 20)))

    return _scheduled(seed, steps, lambda optimizer: lr_scheduler.LambdaLR(optimizer, factor))


@healthy("milestones: the rate falls to a tenth, twice")
def milestones(seed=0, steps=210):
    return _scheduled(seed, steps, lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [90, 150]))


@healthy("exponential decay, each step")
def exponential(seed=0, steps=200):
    return _scheduled(seed, steps, lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.98))


@healthy("one cycle with momentum")
def one_cycle(seed=0, steps=200):
    return _scheduled(
        seed, steps, lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=steps)
    )


@healthy("warm-up, then constant, by a chain of schedulers")
def chained(seed=0, steps=200):
    def make(optimizer):
        warm = lr_scheduler.LinearLR(optimizer, 0.01, total_iters=30)
        return lr_scheduler.SequentialLR(optimizer, [warm, lr_scheduler.ConstantLR(optimizer, 1.0)], [30])

    return _scheduled(seed, steps, make)


@healthy("validation in eval mode each epoch, rate lowered when it stalls, a long flat end")
def plateau(seed=0, steps=300):
    torch.manual_seed(seed)
    x, y = table(500, noise=0.8)
    train, val = random_split(TensorDataset(x, y), [400, 100])
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-3)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=3)
    losses = []
    while len(losses) < steps:
        model.train()
        for a, b in DataLoader(train, batch_size=25, shuffle=True):
            loss = F.mse_loss(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            scheduler.step(sum(F.mse_loss(model(a), b).item() for a, b in DataLoader(val, batch_size=50)) / 2)
    return losses[:steps], model


@healthy("the metric is also taken of training rows in eval mode")
def metrics(seed=0, steps=200):
    torch.manual_seed(seed)
    x, y = blobs(800, spread=1.6)
    train, val = TensorDataset(x[:600], y[:600]), TensorDataset(x[600:], y[600:])
    model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
    losses = []

    def accuracy(data) -> float:
        model.eval()
        with torch.inference_mode():
            right = sum((model(a).argmax(1) == b).sum().item() for a, b in DataLoader(data, batch_size=100))
        model.train()
        return right / len(data)

    while len(losses) < steps:
        for a, b in DataLoader(train, batch_size=30, shuffle=True):
            loss = F.cross_entropy(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        accuracy(train), accuracy(val)
    return losses[:steps], model


@healthy("early stopping before it overfits, the best weights restored")
def early_stopping(seed=0, steps=300):
    torch.manual_seed(seed)
    x, y = blobs(300, spread=1.5)
    model = mlp(20, 64, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    best, kept, bad, losses = float("inf"), None, 0, []
    while len(losses) < steps and bad < 2:
        losses += fit(model, optimizer, (x[:200], y[:200]), 10, size=20)
        model.eval()
        with torch.no_grad():
            value = F.cross_entropy(model(x[200:]), y[200:]).item()
        bad = 0 if value < best else bad + 1
        if value < best:
            best, kept = value, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    return losses, model


@healthy("curriculum: easy rows first, then all", falls_to=0.9)
def curriculum(seed=0, steps=210):
    torch.manual_seed(seed)
    x, y = blobs(900, spread=1.6)
    model = mlp(20, 48, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    order = (x.norm(dim=1)).argsort()
    losses = []
    for share in (300, 600, 900):
        rows = order[:share]
        losses += fit(model, optimizer, (x[rows], y[rows]), steps // 3)
    return losses, model


@healthy("a time series in its order, never shuffled")
def in_order(seed=0, steps=240):
    torch.manual_seed(seed)
    time = torch.arange(1300) * 0.1
    series = torch.sin(time) + 0.5 * torch.sin(2.3 * time) + 0.05 * torch.randn(1300)
    windows = series.unfold(0, 21, 1)
    model = mlp(20, 32, 1, activation=nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for (row,) in batches(windows, size=32, steps=steps, shuffle=False):
        loss = F.mse_loss(model(row[:, :20]), row[:, 20:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("samples are drawn from eval mode in the middle of training")
def sampling(seed=0, steps=200):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step, (x, y) in enumerate(batches(*blobs(), steps=steps)):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 25 == 24:
            model.eval()
            with torch.no_grad():
                model(torch.randn(4, 20))
            model.train()
    return losses, model
