"""Losses and targets of many sizes and signs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.diagnosis.healthy.data import batches, blobs, fit, mlp, table
from benchmarks.diagnosis.healthy.registered import healthy


@healthy("tiny targets, about 1e-4, with Adam")
def tiny_targets(seed=0, steps=200):
    torch.manual_seed(seed)
    x, y = table()
    model = mlp(8, 32, 1, activation=nn.Tanh)
    return fit(
        model, torch.optim.Adam(model.parameters(), lr=3e-3), (x, 1e-4 * y), steps, loss_fn=F.mse_loss
    ), model


@healthy("huge targets, about 1e3, with a wide output and Adam", falls_to=0.9)
def huge_targets(seed=0, steps=250):
    torch.manual_seed(seed)
    x, y = table()
    model = mlp(8, 64, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
    return fit(model, optimizer, (x, 1e3 * y), steps, loss_fn=F.l1_loss), model


@healthy("40 % of the labels are wrong", falls_to=0.9)
def noisy_labels(seed=0, steps=220):
    torch.manual_seed(seed)
    x, y = blobs(1600)
    y = torch.where(torch.rand(1600) < 0.4, torch.randint(0, 5, (1600,)), y)
    model = mlp(20, 32, 5)
    return fit(model, torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1), (x, y), steps), model


@healthy("mostly noise: the loss can fall by a tenth only", falls_to=0.97)
def mostly_noise(seed=0, steps=300):
    torch.manual_seed(seed)
    x, y = table(2000, noise=2.0)
    model = mlp(8, 24, 1)
    return fit(
        model, torch.optim.Adam(model.parameters(), lr=3e-3), (x, y / 2), steps, loss_fn=F.mse_loss
    ), model


@healthy("one label in twenty is positive, pos_weight")
def imbalance(seed=0, steps=220):
    torch.manual_seed(seed)
    y = (torch.rand(1600, 1) < 0.05).float()
    x = torch.randn(1600, 12) + 1.5 * y
    model = mlp(12, 32, 1)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(19.0))
    return fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), (x, y), steps, loss_fn=criterion), model


@healthy("focal loss with most rows easy")
def focal(seed=0, steps=200):
    torch.manual_seed(seed)
    model = mlp(20, 32, 5)

    def loss_fn(out, y):
        each = F.cross_entropy(out, y, reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).mean()

    return fit(model, torch.optim.Adam(model.parameters(), lr=5e-3), blobs(), steps, loss_fn=loss_fn), model


@healthy("sigmoid and BCELoss, several labels a row")
def several_labels(seed=0, steps=200):
    torch.manual_seed(seed)
    x = torch.randn(800, 16)
    y = ((x @ torch.randn(16, 12)) > 2).float()
    model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 12), nn.Sigmoid())
    return fit(
        model, torch.optim.Adam(model.parameters(), lr=5e-3), (x, y), steps, loss_fn=nn.BCELoss()
    ), model


@healthy("log-softmax in the model and NLLLoss")
def nll(seed=0, steps=160):
    torch.manual_seed(seed)
    model = nn.Sequential(mlp(20, 48, 5), nn.LogSoftmax(dim=-1))
    return fit(
        model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs(), steps, loss_fn=nn.NLLLoss()
    ), model


@healthy("hinge loss of a linear classifier with an L1 penalty")
def hinge(seed=0, steps=200):
    torch.manual_seed(seed)
    x, y = blobs(classes=2)
    model = nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    for a, b in batches(x, 2 * y.unsqueeze(1) - 1, steps=steps):
        loss = (1 - b * model(a)).clamp(min=0).mean() + 1e-3 * model.weight.abs().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("Poisson likelihood of counts", falls_to=0.85)
def poisson(seed=0, steps=200):
    torch.manual_seed(seed)
    x = torch.randn(800, 6)
    y = torch.poisson((x @ (torch.randn(6, 1) * 0.4) + 0.5).exp())
    model = mlp(6, 24, 1)
    criterion = nn.PoissonNLLLoss(log_input=True, full=True)
    return fit(model, torch.optim.Adam(model.parameters(), lr=1e-2), (x, y), steps, loss_fn=criterion), model


@healthy("mixture density network: the loss goes below zero", falls_to=0.5)
def mixture(seed=0, steps=250):
    torch.manual_seed(seed)
    model = mlp(1, 32, 9, activation=nn.Tanh)
    x = torch.rand(800, 1) * 2 - 1
    y = 0.3 * torch.sin(3 * x) + 0.3 * torch.randint(0, 2, (800, 1)) + 0.02 * torch.randn(800, 1)

    def loss_fn(out, target):
        share, mean, log_std = out.chunk(3, -1)
        each = -0.5 * ((target - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
        return -torch.logsumexp(share.log_softmax(-1) + each, -1).mean()

    return fit(model, torch.optim.Adam(model.parameters(), lr=1e-2), (x, y), steps, loss_fn=loss_fn), model


@healthy("quantile regression by the pinball loss", falls_to=0.8)
def quantiles(seed=0, steps=220):
    torch.manual_seed(seed)
    model, levels = mlp(8, 32, 3), torch.tensor([0.1, 0.5, 0.9])

    def loss_fn(out, y):
        gap = y - out
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    return fit(model, torch.optim.Adam(model.parameters(), lr=5e-3), table(), steps, loss_fn=loss_fn), model


@healthy("cosine similarity as a loss, from about zero to minus one")
def cosine(seed=0, steps=160):
    torch.manual_seed(seed)
    x = torch.randn(640, 16)
    y = torch.tanh(x @ torch.randn(16, 8))
    model = mlp(16, 48, 8)

    def loss_fn(out, target):
        return 1 - F.cosine_similarity(out, target).mean()

    return fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), (x, y), steps, loss_fn=loss_fn), model


@healthy("word vectors with negative samples", falls_to=0.9)
def word_vectors(seed=0, steps=250):
    torch.manual_seed(seed)
    inside, outside = nn.Embedding(60, 12), nn.Embedding(60, 12)
    nn.init.uniform_(inside.weight, -0.1, 0.1)
    nn.init.zeros_(outside.weight)
    optimizer = torch.optim.Adam([*inside.parameters(), *outside.parameters()], lr=3e-2)
    word = torch.randint(0, 60, (4000,))
    near = (word // 10 * 10 + torch.randint(0, 10, (4000,))) % 60
    losses = []
    for a, b in batches(word, near, size=64, steps=steps):
        other = torch.randint(0, 60, (64, 4))
        positive = (inside(a) * outside(b)).sum(1)
        negative = (inside(a).unsqueeze(1) * outside(other)).sum(2)
        loss = -(F.logsigmoid(positive).mean() + F.logsigmoid(-negative).mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (inside, outside)


@healthy("adaptive softmax over a large vocabulary")
def adaptive(seed=0, steps=200):
    torch.manual_seed(seed)
    x = torch.randn(1200, 16)
    y = (x[:, :4] > 0).long() @ torch.tensor([8, 4, 2, 1]) * 12
    body, head = mlp(16, 48, 32), nn.AdaptiveLogSoftmaxWithLoss(32, 200, [20, 80])
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=5e-3)
    losses = []
    for a, b in batches(x, y, steps=steps):
        loss = head(body(a), b).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (body, head)
