"""Less common structures: graphs, sets, experts, gates, embeddings, flows of activations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from benchmarks.diagnosis.healthy.data import batches, blobs, fit, mlp, table
from benchmarks.diagnosis.healthy.registered import healthy


class _Graph(nn.Module):
    def __init__(self, adjacency, features: int) -> None:
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.one, self.two = nn.Linear(features, 24), nn.Linear(24, 3)

    def forward(self, x):
        return self.adjacency @ self.two(F.relu(self.adjacency @ self.one(x)))


@healthy("graph convolution, full batch, few labelled nodes, weight decay")
def graph(seed=0, steps=160):
    torch.manual_seed(seed)
    label = torch.randint(0, 3, (150,))
    edges = (torch.rand(150, 150) < torch.where(label[:, None] == label, 0.08, 0.01)).float()
    edges = ((edges + edges.T + torch.eye(150)) > 0).float()
    degree = edges.sum(1).rsqrt()
    model = _Graph(degree[:, None] * edges * degree, 16)
    x = torch.randn(3, 16)[label] * 0.5 + torch.randn(150, 16)
    known = torch.randperm(150)[:40]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    losses = []
    for _ in range(steps):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x)[known], label[known])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


class _Experts(nn.Module):
    """Each row goes to one of eight experts; in a small batch some get no row."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(20, 8)
        self.experts = nn.ModuleList(mlp(20, 16, 20) for _ in range(8))
        self.head = nn.Linear(20, 5)

    def forward(self, x):
        share = self.gate(x).softmax(-1)
        weight, chosen = share.max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        counts = F.one_hot(chosen, 8).float().mean(0)
        return self.head(x + out), 8 * (counts * share.mean(0)).sum()


@healthy("mixture of experts: some experts have no rows in a step")
def experts(seed=0, steps=180):
    torch.manual_seed(seed)
    model = _Experts()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for x, y in batches(*blobs(), size=16, steps=steps):
        out, balance = model(x)
        loss = F.cross_entropy(out, y) + 0.01 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("sparse embedding of a large table with SparseAdam, the rest with Adam")
def sparse(seed=0, steps=180):
    torch.manual_seed(seed)
    bag, head = nn.EmbeddingBag(2000, 16, mode="mean", sparse=True), nn.Linear(16, 3)
    words = torch.randint(0, 300, (960, 10))
    label = (words % 3).mode(1).values
    optimizers = [
        torch.optim.SparseAdam(bag.parameters(), lr=2e-2),
        torch.optim.Adam(head.parameters(), lr=1e-2),
    ]
    losses = []
    for x, y in batches(words, label, size=32, steps=steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.cross_entropy(head(bag(x)), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses, (bag, head)


@healthy("matrix factorisation: rows of users and films that are rarely seen, Adagrad")
def factors(seed=0, steps=220):
    torch.manual_seed(seed)
    users, films = nn.Embedding(120, 6), nn.Embedding(90, 6)
    nn.init.normal_(users.weight, std=0.3)
    nn.init.normal_(films.weight, std=0.3)
    model = nn.ModuleDict({"users": users, "films": films})
    one, two = torch.randint(0, 120, (3000,)), torch.randint(0, 90, (3000,))
    rating = (torch.randn(120, 3)[one] * torch.randn(90, 3)[two]).sum(1)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.2)
    losses = []
    for u, f, r in batches(one, two, rating, size=64, steps=steps):
        loss = F.mse_loss((users(u) * films(f)).sum(1), r)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


class _Rezero(nn.Module):
    def __init__(self, depth: int = 8, width: int = 32) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(20, width), nn.Linear(width, 5)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.alpha = nn.Parameter(torch.zeros(depth))

    def forward(self, x):
        x = self.first(x)
        for alpha, layer in zip(self.alpha, self.layers, strict=True):
            x = x + alpha * torch.relu(layer(x))
        return self.head(x)


@healthy("ReZero: every residual branch starts at zero")
def rezero(seed=0, steps=160):
    torch.manual_seed(seed)
    model = _Rezero()
    return fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs(), steps), model


class _Highway(nn.Module):
    def __init__(self, depth: int = 4, width: int = 24) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(20, width), nn.Linear(width, 5)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.gates = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        for gate in self.gates:
            nn.init.constant_(gate.bias, -3.0)

    def forward(self, x):
        x = self.first(x)
        for layer, gate in zip(self.layers, self.gates, strict=True):
            share = torch.sigmoid(gate(x))
            x = share * torch.relu(layer(x)) + (1 - share) * x
        return self.head(x)


@healthy("highway network whose gates start nearly closed")
def highway(seed=0, steps=160):
    torch.manual_seed(seed)
    model = _Highway()
    return fit(model, torch.optim.Adam(model.parameters(), lr=3e-3), blobs(), steps), model


class _Drop(nn.Module):
    """Layers are left out at random, so that they have no gradient in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(20, 32), nn.Linear(32, 5)
        self.layers = nn.ModuleList(mlp(32, 32, 32) for _ in range(4))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            if not self.training or torch.rand(()) > 0.4:
                x = x + 0.5 * layer(x)
        return self.head(x)


@healthy("stochastic depth: layers have no gradient in some steps")
def drop(seed=0, steps=160):
    torch.manual_seed(seed)
    model = _Drop()
    return fit(model, torch.optim.Adam(model.parameters(), lr=2e-3), blobs(), steps), model


@healthy("weight norm, SGD")
def weight_norm(seed=0, steps=160):
    torch.manual_seed(seed)
    model = mlp(20, 32, 32, 5)
    for layer in model[::2]:
        parametrizations.weight_norm(layer)
    return fit(model, torch.optim.SGD(model.parameters(), lr=0.1), blobs(), steps), model


@healthy("spectral norm, Adam")
def spectral_norm(seed=0, steps=160):
    torch.manual_seed(seed)
    model = mlp(20, 32, 32, 5, activation=nn.LeakyReLU)
    for layer in model[::2]:
        parametrizations.spectral_norm(layer)
    return fit(model, torch.optim.Adam(model.parameters(), lr=5e-3), blobs(), steps), model


@healthy("self-normalising network of eight SELU layers with alpha dropout")
def selu(seed=0, steps=180):
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inside, outside in zip([20, *[32] * 8], [*[32] * 8, 5], strict=True):
        layer = nn.Linear(inside, outside)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.SELU(), nn.AlphaDropout(0.02)]
    model = nn.Sequential(*layers[:-2])
    return fit(model, torch.optim.SGD(model.parameters(), lr=0.02), blobs(), steps), model


@healthy("eight ReLU layers without norm, He initialisation, SGD")
def deep_relu(seed=0, steps=200):
    torch.manual_seed(seed)
    model = mlp(20, *[48] * 7, 5)
    for layer in model[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
    return fit(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), blobs(), steps), model


class _Siren(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1, 48), nn.Linear(48, 48)])
        self.head = nn.Linear(48, 1)
        nn.init.uniform_(self.layers[0].weight, -1, 1)
        nn.init.uniform_(self.layers[1].weight, -0.03, 0.03)

    def forward(self, x):
        for factor, layer in zip((12.0, 12.0), self.layers, strict=True):
            x = torch.sin(factor * layer(x))
        return self.head(x)


@healthy("SIREN that fits a signal from its coordinates, one full batch")
def siren(seed=0, steps=200):
    torch.manual_seed(seed)
    x = torch.linspace(-1, 1, 200).unsqueeze(1)
    y = torch.sin(9 * x) * torch.cos(17 * x + 1)
    model = _Siren()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("one-hot columns, most of them zero, and wide and deep parts")
def one_hot(seed=0, steps=160):
    torch.manual_seed(seed)
    kinds = torch.randint(0, 60, (800, 3))
    x = F.one_hot(kinds + torch.tensor([0, 60, 120]), 180).sum(1).float()
    y = (torch.randn(180)[kinds].sum(1, keepdim=True) > 0).float()
    model = mlp(180, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return fit(model, optimizer, (x, y), steps, loss_fn=F.binary_cross_entropy_with_logits), model


@healthy("complex weights, Adam")
def complex_weights(seed=0, steps=200):
    torch.manual_seed(seed)
    one = nn.Parameter(0.3 * torch.randn(8, 16, dtype=torch.complex64))
    two = nn.Parameter(0.3 * torch.randn(16, 1, dtype=torch.complex64))
    x = torch.randn(512, 8, dtype=torch.complex64)
    y = (x @ torch.randn(8, 1, dtype=torch.complex64)).abs()
    optimizer = torch.optim.Adam([one, two], lr=1e-2)
    losses = []
    for a, b in batches(x, y, steps=steps):
        hidden = a @ one
        loss = (((torch.tanh(hidden.abs()) * hidden) @ two).abs() - b).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (one, two)


class _Set(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phi, self.rho = mlp(3, 32, 16), mlp(16, 32, 1)

    def forward(self, x):
        return self.rho(self.phi(x).sum(1))


@healthy("deep sets: the order of the elements does not matter")
def deep_set(seed=0, steps=180):
    torch.manual_seed(seed)
    x = torch.randn(640, 10, 3)
    y = x.square().mean((1, 2)).unsqueeze(1)
    model = _Set()
    return fit(
        model,
        torch.optim.Adam(model.parameters(), lr=5e-3),
        (x, (y - y.mean()) / y.std()),
        steps,
        loss_fn=F.mse_loss,
    ), model


@healthy("gated linear units and a decoder tied to the encoder's transposed weight")
def tied(seed=0, steps=200):
    torch.manual_seed(seed)
    x = torch.randn(640, 6) @ torch.randn(6, 24) / 2.5
    weight, gate = nn.Parameter(0.2 * torch.randn(8, 24)), nn.Linear(24, 8)
    bias = nn.Parameter(torch.zeros(24))
    optimizer = torch.optim.Adam([weight, bias, *gate.parameters()], lr=1e-2)
    losses = []
    for (rows,) in batches(x, steps=steps):
        code = F.linear(rows, weight) * torch.sigmoid(gate(rows))
        loss = F.mse_loss(code @ weight + bias, rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (weight, bias, gate)


@healthy("ensemble of three networks under one optimizer, losses added up")
def ensemble(seed=0, steps=160):
    torch.manual_seed(seed)
    models = nn.ModuleList(mlp(8, 24, 1, activation=nn.Tanh) for _ in range(3))
    optimizer = torch.optim.Adam(models.parameters(), lr=1e-2)
    losses = []
    for x, y in batches(*table(), steps=steps):
        loss = sum(F.mse_loss(model(x), y) for model in models)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, models
