"""Unusual but right: checkpointing, compilation, gradients of gradients, models made of functions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.diagnosis.healthy.data import batches, blobs, fit, mlp, table
from benchmarks.diagnosis.healthy.registered import healthy


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([mlp(20, 32, 32), mlp(32, 32, 32)])
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(32, 5)

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(checkpoint(block, x, use_reentrant=False))
        return self.head(self.dropout(x))


@healthy("activation checkpointing")
def checkpointed(seed=0, steps=160):
    torch.manual_seed(seed)
    model = _Checkpointed()
    return fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs(), steps), model


@healthy("torch.compile with the eager backend")
def compiled(seed=0, steps=120):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 5))
    fast = torch.compile(model, backend="eager")
    return fit(fast, torch.optim.AdamW(model.parameters(), lr=5e-3), blobs(), steps), model


@healthy("physics: the loss holds a derivative of the network", falls_to=0.3)
def physics(seed=0, steps=220):
    torch.manual_seed(seed)
    model = mlp(1, 32, 32, 1, activation=nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(steps):
        t = torch.rand(64, 1, requires_grad=True)
        y = model(t)
        (slope,) = torch.autograd.grad(y.sum(), t, create_graph=True)
        start = model(torch.zeros(1, 1)) - 1
        loss = (slope + 2 * y).square().mean() + start.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("meta-learning: a gradient step inside the loss", falls_to=0.8)
def meta(seed=0, steps=150):
    torch.manual_seed(seed)
    model = mlp(1, 24, 1, activation=nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        weights, total = dict(model.named_parameters()), 0.0
        for _ in range(4):
            x, shift = torch.rand(20, 1) * 4 - 2, torch.randn(1)
            y = torch.sin(2 * x) + shift
            inner = F.mse_loss(functional_call(model, weights, (x[:10],)), y[:10])
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            moved = {name: w - 0.1 * s for (name, w), s in zip(weights.items(), slopes, strict=True)}
            total = total + F.mse_loss(functional_call(model, moved, (x[10:],)), y[10:])
        loss = total / 4
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


class _Stream(IterableDataset):
    """Each worker draws rows of its own."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        generator = torch.Generator().manual_seed(worker.seed % 2**31)
        for _ in range(1300):
            x = torch.randn(8, generator=generator)
            yield x, torch.sin(x[:1]) + 0.5 * x[1:2]


@healthy("a stream of new rows from two worker processes")
def stream(seed=0, steps=150):
    torch.manual_seed(seed)
    model = mlp(8, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for x, y in DataLoader(_Stream(), batch_size=16, num_workers=2):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) >= steps:
            break
    return losses, model


class _Unused(nn.Module):
    """A part for inference only, which training does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(20, 48, 16), nn.Linear(16, 5)
        self.temperature = nn.Parameter(torch.ones(()), requires_grad=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.count += 1
        return self.head(torch.relu(self.body(x))) / self.temperature


@healthy("buffers that count, a constant kept as a parameter")
def counting(seed=0, steps=160):
    torch.manual_seed(seed)
    model = _Unused()
    return fit(model, torch.optim.AdamW(model.parameters(), lr=3e-3), blobs(), steps), model


@healthy("heavy dropout and input noise")
def dropout(seed=0, steps=240):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Dropout(0.2), nn.Linear(20, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 5))
    return fit(model, torch.optim.Adam(model.parameters(), lr=5e-3), blobs(), steps), model


@healthy("batches of one row, LayerNorm")
def single_rows(seed=0, steps=300):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 5))
    return fit(model, torch.optim.SGD(model.parameters(), lr=0.01), blobs(), steps, size=1), model


@healthy("training goes on from a saved state of model, optimizer and schedule", falls_to=0.8)
def resumed(seed=0, steps=200):
    torch.manual_seed(seed)
    data = table()

    def make():
        model = mlp(8, 32, 1, activation=nn.Tanh)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 60, 0.5)

    model, optimizer, scheduler = make()
    losses = fit(model, optimizer, data, steps // 2, loss_fn=F.mse_loss, scheduler=scheduler)
    saved = [each.state_dict() for each in (model, optimizer, scheduler)]
    model, optimizer, scheduler = make()
    for each, state in zip((model, optimizer, scheduler), saved, strict=True):
        each.load_state_dict(state)
    losses += fit(model, optimizer, data, steps // 2, loss_fn=F.mse_loss, scheduler=scheduler)
    return losses, model


@healthy("losses kept as detached tensors, an average over the epoch")
def kept(seed=0, steps=200):
    torch.manual_seed(seed)
    model = mlp(20, 32, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    history = []
    for x, y in batches(*blobs(), steps=steps):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.detach())
    return torch.stack(history).tolist(), model
