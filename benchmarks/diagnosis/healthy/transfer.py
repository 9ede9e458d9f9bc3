"""Fine-tuning: parts that do not learn, on purpose."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.diagnosis.healthy.data import batches, blobs, fit, mlp, pictures
from benchmarks.diagnosis.healthy.registered import healthy


def _pretrained(data, steps: int = 120):
    """A body that has learned a first task; its head is for the new one."""
    body = mlp(20, 48, 48)
    whole = nn.Sequential(body, nn.ReLU(), nn.Linear(48, 5))
    optimizer = torch.optim.Adam(whole.parameters(), lr=3e-3)
    for x, y in batches(*data, steps=steps):
        optimizer.zero_grad()
        F.cross_entropy(whole(x), y).backward()
        optimizer.step()
    return whole


class _WithBody(nn.Module):
    def __init__(self, body, width: int = 48, classes: int = 5) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, classes)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


@healthy("frozen backbone: requires_grad is off, all parameters given to the optimizer")
def frozen(seed=0, steps=180):
    torch.manual_seed(seed)
    data = blobs()
    model = _WithBody(mlp(20, 48, 48))
    model.body.requires_grad_(False)
    return fit(model, torch.optim.Adam(model.parameters(), lr=1e-2), data, steps), model


class _NoGradBody(_WithBody):
    def forward(self, x):
        with torch.no_grad():
            features = torch.relu(self.body(x))
        return self.head(features)


@healthy("frozen backbone: under no_grad, only the head given to the optimizer")
def frozen_by_no_grad(seed=0, steps=180):
    torch.manual_seed(seed)
    model = _NoGradBody(mlp(20, 48, 48))
    return fit(model, torch.optim.Adam(model.head.parameters(), lr=1e-2), blobs(), steps), model


@healthy("frozen backbone with BatchNorm kept in eval mode while the head learns")
def frozen_norm(seed=0, steps=180):
    torch.manual_seed(seed)
    body = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
    )
    head = nn.Linear(64, 4)
    model = nn.Sequential(body, head)
    for parameter in body.parameters():
        parameter.requires_grad = False
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    model.train()
    body.eval()
    for x, y in batches(*pictures(), steps=steps):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("fine-tuning of a trained network with a very small rate", falls_to=1.25)
def fine_tuning(seed=0, steps=160):
    torch.manual_seed(seed)
    x, y = blobs(960)
    y = torch.where(torch.rand(960) < 0.3, torch.randint(0, 5, (960,)), y)
    model = _pretrained((x, y))
    return fit(model, torch.optim.AdamW(model.parameters(), lr=1e-6), (x, y), steps), model


@healthy("fine-tuning with a rate for each layer, the lowest 1e-5")
def layer_rates(seed=0, steps=180):
    torch.manual_seed(seed)
    data = blobs()
    model = _WithBody(_pretrained(data)[0])
    groups = [
        {"params": model.body[0].parameters(), "lr": 1e-5},
        {"params": model.body[2].parameters(), "lr": 1e-4},
        {"params": model.head.parameters(), "lr": 5e-3},
    ]
    return fit(model, torch.optim.AdamW(groups), data, steps), model


class _LoRA(nn.Module):
    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + 2.0 * F.linear(F.linear(x, self.a), self.b)


@healthy("LoRA: low-rank updates that start at zero on a frozen network")
def lora(seed=0, steps=200):
    torch.manual_seed(seed)
    x, y = blobs()
    model = _pretrained((x, y))
    model[0][0], model[0][2], model[2] = _LoRA(model[0][0]), _LoRA(model[0][2]), _LoRA(model[2])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    return fit(model, optimizer, (x, (y + 2) % 5), steps), model


@healthy("only biases learn")
def biases(seed=0, steps=200):
    torch.manual_seed(seed)
    x, y = blobs()
    model = _pretrained((x, y))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.endswith("bias")
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=2e-2)
    return fit(model, optimizer, (x + 0.8, y), steps), model


class _Prompted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(0.02 * torch.randn(1, 4, 20))
        layer = nn.TransformerEncoderLayer(20, 2, 40, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1).requires_grad_(False)
        self.head = nn.Linear(20, 5)

    def forward(self, x):
        tokens = torch.cat([self.prompt.expand(len(x), -1, -1), x.unsqueeze(1)], 1)
        return self.head(self.encoder(tokens)[:, -1])


@healthy("prompt tuning: only some input vectors and the head learn")
def prompt(seed=0, steps=200):
    torch.manual_seed(seed)
    model = _Prompted()
    optimizer = torch.optim.Adam([model.prompt, *model.head.parameters()], lr=1e-2)
    return fit(model, optimizer, blobs(), steps), model


@healthy("gradual unfreezing: groups are added to the optimizer as it goes")
def unfreezing(seed=0, steps=180):
    torch.manual_seed(seed)
    model = _WithBody(mlp(20, 48, 48)).train()
    model.body.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=5e-3)
    losses = []
    for step, (x, y) in enumerate(batches(*blobs(), steps=steps)):
        if step == 60:
            model.body[2].requires_grad_(True)
            optimizer.add_param_group({"params": model.body[2].parameters(), "lr": 2e-3})
        if step == 120:
            model.body[0].requires_grad_(True)
            optimizer.add_param_group({"params": model.body[0].parameters(), "lr": 1e-3})
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("the last layer starts at zero")
def zero_head(seed=0, steps=160):
    torch.manual_seed(seed)
    model = mlp(20, 48, 48, 5)
    nn.init.zeros_(model[4].weight)
    nn.init.zeros_(model[4].bias)
    return fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs(), steps), model
