"""Optimizers: torch's own, some by hand, and unusual ways to call them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.diagnosis.healthy.data import batches, blobs, fit, mlp, table
from benchmarks.diagnosis.healthy.registered import healthy


@healthy("plain SGD on a linear softmax")
def linear(seed=0, steps=160):
    torch.manual_seed(seed)
    model = nn.Linear(20, 5)
    return fit(model, torch.optim.SGD(model.parameters(), lr=0.1), blobs(), steps), model


@healthy("Adadelta")
def adadelta(seed=0, steps=200):
    torch.manual_seed(seed)
    model = mlp(20, 48, 5)
    return fit(model, torch.optim.Adadelta(model.parameters(), lr=1.0), blobs(), steps), model


@healthy("Adamax with weight decay on everything")
def adamax(seed=0, steps=160):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 5))
    return fit(
        model, torch.optim.Adamax(model.parameters(), lr=5e-3, weight_decay=1e-2), blobs(), steps
    ), model


@healthy("Adafactor")
def adafactor(seed=0, steps=220):
    torch.manual_seed(seed)
    model = mlp(20, 48, 48, 5)
    return fit(model, torch.optim.Adafactor(model.parameters(), lr=5e-2), blobs(), steps), model


@healthy("averaged SGD")
def asgd(seed=0, steps=160):
    torch.manual_seed(seed)
    model = mlp(20, 48, 5)
    return fit(model, torch.optim.ASGD(model.parameters(), lr=0.1), blobs(), steps), model


@healthy("AMSGrad, fused off, foreach off, maximize of a negative loss")
def amsgrad(seed=0, steps=160):
    torch.manual_seed(seed)
    model = mlp(8, 32, 1, activation=nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True, foreach=False, maximize=True)
    losses = []
    for x, y in batches(*table(), steps=steps):
        score = -F.mse_loss(model(x), y)
        optimizer.zero_grad()
        score.backward()
        optimizer.step()
        losses.append(-score.item())
    return losses, model


class _Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                one, two = group["betas"]
                update = (mean * one + p.grad * (1 - one)).sign_()
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])
                mean.mul_(two).add_(p.grad, alpha=1 - two)


@healthy("Lion, written by hand")
def lion(seed=0, steps=200):
    torch.manual_seed(seed)
    model = mlp(20, 48, 5)
    return fit(model, _Lion(model.parameters(), lr=1e-3, weight_decay=0.1), blobs(), steps), model


@healthy("LBFGS with a closure, full batch", steps=12)
def lbfgs(seed=0, steps=12):
    torch.manual_seed(seed)
    x, y = table(200)
    model = mlp(8, 16, 1, activation=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=10)
    losses = []

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(steps):
        losses.append(float(optimizer.step(closure)))
    return losses, model


@healthy("full-batch gradient descent with momentum")
def full_batch(seed=0, steps=250):
    torch.manual_seed(seed)
    x, y = table(300)
    model = mlp(8, 32, 1, activation=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("one batch overfitted on purpose", falls_to=0.1)
def one_batch(seed=0, steps=200):
    torch.manual_seed(seed)
    x, y = blobs(24)
    model = mlp(20, 64, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("sharpness-aware minimisation: two backward passes a step")
def sam(seed=0, steps=140):
    torch.manual_seed(seed)
    model = mlp(20, 48, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x, y in batches(*blobs(), steps=steps):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            moves = [0.05 * p.grad / (norm + 1e-12) for p in model.parameters()]
            for p, move in zip(model.parameters(), moves, strict=True):
                p.add_(move)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


@healthy("gradient descent by hand, without an optimizer or a module")
def by_hand(seed=0, steps=200):
    torch.manual_seed(seed)
    w1, w2 = (torch.randn(8, 24) * 0.4).requires_grad_(), (torch.randn(24, 1) * 0.2).requires_grad_()
    losses = []
    for x, y in batches(*table(), steps=steps):
        loss = ((torch.tanh(x @ w1) @ w2 - y) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for w in (w1, w2):
                w -= 0.1 * w.grad
                w.grad = None
        losses.append(loss.item())
    return losses, (w1, w2)


@healthy("an optimizer over plain tensors, torch.autograd.grad instead of backward")
def plain_tensors(seed=0, steps=200):
    torch.manual_seed(seed)
    weight, bias = torch.zeros(8, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight, bias], lr=0.05)
    losses = []
    for x, y in batches(*table(), steps=steps):
        loss = (x @ weight + bias - y).square().mean()
        weight.grad, bias.grad = torch.autograd.grad(loss, [weight, bias])
        optimizer.step()
        losses.append(loss.item())
    return losses, (weight, bias)


@healthy("gradient accumulation over four micro-batches, divided")
def accumulation(seed=0, steps=120):
    torch.manual_seed(seed)
    model = mlp(20, 48, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses, total = [], 0.0
    for number, (x, y) in enumerate(batches(*blobs(), size=8, steps=4 * steps), 1):
        loss = F.cross_entropy(model(x), y) / 4
        loss.backward()
        total += loss.item()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total)
            total = 0.0
    return losses, model


@healthy("accumulation by adding up the losses before one backward")
def added_up(seed=0, steps=120):
    torch.manual_seed(seed)
    model = mlp(20, 48, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rows = iter(batches(*blobs(), size=8, steps=3 * steps))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        loss = torch.stack([F.cross_entropy(model(x), y) for x, y in (next(rows) for _ in range(3))]).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("an optimizer for each parameter, stepped in the backward pass")
def in_backward(seed=0, steps=160):
    torch.manual_seed(seed)
    model = mlp(20, 48, 5)
    optimizers = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    losses = []
    for x, y in batches(*blobs(), steps=steps):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
    return losses, model


@healthy("hard clipping to a norm of 0.01 with momentum", falls_to=0.95)
def hard_clipping(seed=0, steps=220):
    torch.manual_seed(seed)
    model = mlp(20, 48, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for x, y in batches(*blobs(), steps=steps):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        losses.append(loss.item())
    return losses, model
