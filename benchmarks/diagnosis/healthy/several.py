"""Several models, tasks or optimizers in one training."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.diagnosis.healthy.data import batches, blobs, fit, mlp, pictures, table
from benchmarks.diagnosis.healthy.registered import healthy


@healthy("distillation: a student learns from a teacher's soft labels", falls_to=0.8)
def distillation(seed=0, steps=160):
    torch.manual_seed(seed)
    x, y = blobs()
    teacher, student = mlp(20, 64, 5), mlp(20, 16, 5)
    fit(teacher, torch.optim.Adam(teacher.parameters(), lr=5e-3), (x, y), 80)
    teacher.eval()
    optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)
    losses = []
    for a, b in batches(x, y, steps=steps):
        with torch.no_grad():
            soft = (teacher(a) / 2).softmax(-1)
        out = student(a)
        loss = 4 * F.kl_div((out / 2).log_softmax(-1), soft, reduction="batchmean") + F.cross_entropy(out, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (teacher, student)


@healthy("two tasks by turns: each head has no gradient in every second step")
def by_turns(seed=0, steps=200):
    torch.manual_seed(seed)
    body, one, two = nn.Sequential(nn.Linear(20, 48), nn.ReLU()), nn.Linear(48, 5), nn.Linear(48, 1)
    model = nn.ModuleDict({"body": body, "one": one, "two": two})
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    x, y = blobs()
    losses = []
    for step, (a, b) in enumerate(batches(x, y, steps=steps)):
        optimizer.zero_grad()
        if step % 2:
            loss = 3 * F.mse_loss(two(body(a)), a[:, :3].mean(1, keepdim=True))
        else:
            loss = F.cross_entropy(one(body(a)), b)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("two tasks at once with learned weights of their losses, which go below zero")
def uncertainty(seed=0, steps=200):
    torch.manual_seed(seed)
    body, one, two = nn.Sequential(nn.Linear(20, 48), nn.ReLU()), nn.Linear(48, 5), nn.Linear(48, 1)
    weights = nn.Parameter(torch.zeros(2))
    model = nn.ModuleList([body, one, two])
    optimizer = torch.optim.Adam([*model.parameters(), weights], lr=1e-2)
    losses = []
    for a, b in batches(*blobs(), steps=steps):
        h = body(a)
        each = torch.stack([F.cross_entropy(one(h), b), F.mse_loss(two(h), a[:, :1])])
        loss = ((-weights).exp() * each + weights).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (model, weights)


@healthy("contrastive learning (InfoNCE) of two views", falls_to=0.75)
def contrastive(seed=0, steps=200):
    torch.manual_seed(seed)
    model = mlp(24, 64, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    x = torch.randn(640, 24)
    losses = []
    for (rows,) in batches(x, size=48, steps=steps):
        one, two = (F.normalize(model(rows + 0.5 * torch.randn_like(rows)), dim=1) for _ in range(2))
        scores = one @ two.T / 0.1
        label = torch.arange(len(rows))
        loss = (F.cross_entropy(scores, label) + F.cross_entropy(scores.T, label)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("triplet loss, zero for many rows")
def triplet(seed=0, steps=160):
    torch.manual_seed(seed)
    model = mlp(20, 48, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.TripletMarginLoss(margin=1.0)
    x, y = blobs(spread=1.5)
    by_class = [x[y == number] for number in range(5)]
    losses = []
    for a, b in batches(x, y, steps=steps):
        like = torch.stack([by_class[k][torch.randint(len(by_class[k]), ())] for k in b.tolist()])
        other = torch.stack([by_class[(k + 1 + int(torch.randint(4, ()))) % 5][0] for k in b.tolist()])
        loss = criterion(model(a), model(like), model(other))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("BYOL: the target is a moving average of the network", falls_to=0.5)
def byol(seed=0, steps=160):
    torch.manual_seed(seed)
    online, predictor = (
        nn.Sequential(nn.Linear(24, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 16)),
        mlp(16, 32, 16),
    )
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam([*online.parameters(), *predictor.parameters()], lr=3e-3)
    x = torch.randn(640, 24)
    losses = []
    for (rows,) in batches(x, size=48, steps=steps):
        one, two = rows + 0.3 * torch.randn_like(rows), rows + 0.3 * torch.randn_like(rows)
        with torch.no_grad():
            aim = F.normalize(target(two), dim=1)
        loss = (2 - 2 * (F.normalize(predictor(online(one)), dim=1) * aim).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, new in zip(target.parameters(), online.parameters(), strict=True):
                mean.lerp_(new, 0.02)
        losses.append(loss.item())
    return losses, (online, predictor, target)


@healthy("stochastic weight averaging with its own rate, norms updated at the end")
def swa(seed=0, steps=200):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 5))
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=10)
    data = blobs()
    losses = []
    for step, (x, y) in enumerate(batches(*data, steps=steps)):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step >= steps // 2:
            average.update_parameters(model)
            scheduler.step()
    torch.optim.swa_utils.update_bn(batches(*data, steps=10), average)
    return losses, (model, average)


@healthy("three folds, a new model for each, evaluated on rows that another fold learned from")
def folds(seed=0, steps=180):
    torch.manual_seed(seed)
    x, y = blobs(600)
    losses, models = [], []
    for fold in range(3):
        model = mlp(20, 32, 5)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        held = torch.arange(600) % 3 == fold
        losses += fit(model, optimizer, (x[~held], y[~held]), steps // 3)
        model.eval()
        with torch.no_grad():
            F.cross_entropy(model(x[held]), y[held])
        models.append(model)
    return losses, models


@healthy("a search over three rates, one after the other", falls_to=1.0)
def search(seed=0, steps=180):
    torch.manual_seed(seed)
    data = table()
    losses, models = [], []
    for rate in (1e-4, 1e-3, 1e-2):
        model = mlp(8, 32, 1, activation=nn.Tanh)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        losses += fit(model, optimizer, data, steps // 3, loss_fn=F.mse_loss)
        models.append(model)
    return losses, models


@healthy("jigsaw pretraining and then the real task with the same body")
def two_phases(seed=0, steps=200):
    torch.manual_seed(seed)
    x, y = pictures()
    body = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2), nn.ReLU(), nn.Conv2d(12, 12, 3), nn.ReLU(), nn.Flatten()
    )
    turned = torch.randint(0, 2, (len(x),))
    flipped = torch.where(turned[:, None, None, None] == 1, x.transpose(2, 3), -x)
    first = nn.Sequential(body, nn.Linear(108, 2))
    losses = fit(first, torch.optim.Adam(first.parameters(), lr=2e-3), (flipped, turned), steps // 2)
    second = nn.Sequential(body, nn.Linear(108, 4))
    losses += fit(second, torch.optim.Adam(second.parameters(), lr=2e-3), (x, y), steps // 2)
    return losses, (first, second)
