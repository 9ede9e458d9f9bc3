"""Precisions: autocast, scalers, half weights, doubles."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.diagnosis.healthy.data import batches, blobs, fit, mlp, pictures, table
from benchmarks.diagnosis.healthy.registered import healthy


@healthy("bfloat16 autocast of a CNN")
def bf16(seed=0, steps=160):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(300, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for x, y in batches(*pictures(), steps=steps):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("float16 autocast with a scaler whose first scale is too large: some steps are skipped")
def scaler(seed=0, steps=160):
    torch.manual_seed(seed)
    model = mlp(20, 32, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scale = torch.amp.GradScaler("cpu", init_scale=2.0**22)
    losses = []
    for x, y in batches(*blobs(), steps=steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scale.scale(loss).backward()
        scale.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scale.step(optimizer)
        scale.update()
        losses.append(loss.item())
    return losses, model


@healthy("scaler without clipping and without unscale_, which is right")
def scaler_only(seed=0, steps=140):
    torch.manual_seed(seed)
    model = mlp(8, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scale = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=40)
    losses = []
    for x, y in batches(*table(), steps=steps):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(x).float(), y)
        scale.scale(loss).backward()
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


@healthy("bfloat16 weights with float32 masters that the optimizer steps")
def masters(seed=0, steps=180):
    torch.manual_seed(seed)
    model = mlp(20, 48, 5).bfloat16()
    master = [p.detach().clone().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(master, lr=3e-3)
    losses = []
    for x, y in batches(*blobs(), steps=steps):
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        for copy, p in zip(master, model.parameters(), strict=True):
            copy.grad, p.grad = p.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for copy, p in zip(master, model.parameters(), strict=True):
                p.copy_(copy)
        losses.append(loss.item())
    return losses, (model, master)


@healthy("pure bfloat16 weights with a rate that is large enough")
def pure_bf16(seed=0, steps=200):
    torch.manual_seed(seed)
    x, y = blobs()
    model = mlp(20, 48, 5).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return fit(model, optimizer, (x.bfloat16(), y), steps), model


@healthy("float64")
def doubles(seed=0, steps=200):
    torch.manual_seed(seed)
    x, y = table()
    model = mlp(8, 32, 1, activation=nn.Tanh).double()
    return fit(
        model,
        torch.optim.Adam(model.parameters(), lr=5e-3),
        (x.double(), y.double()),
        steps,
        loss_fn=F.mse_loss,
    ), model
