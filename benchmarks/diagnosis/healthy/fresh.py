"""Trainings of pictures, sets, graphs and pairs."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from benchmarks.diagnosis.healthy.registered import healthy


class Digits(Dataset):
    """Seven-segment digits with noise, moved by a pixel or two."""

    SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 10, (count,), generator=generator)
        noise = 0.15 * torch.randn(count, 1, 16, 16, generator=generator)
        moves = torch.randint(-2, 3, (count, 2), generator=generator).tolist()
        shapes = torch.stack([self.draw(text) for text in self.SEGMENTS])[self.labels]
        moved = [torch.roll(one, move, (0, 1)) for one, move in zip(shapes, moves, strict=True)]
        self.pictures = torch.stack(moved)[:, None] + noise

    @staticmethod
    def draw(segments: str) -> torch.Tensor:
        canvas = torch.zeros(16, 16)
        bars = {
            "a": (slice(2, 4), slice(5, 11)),
            "g": (slice(7, 9), slice(5, 11)),
            "d": (slice(12, 14), slice(5, 11)),
            "f": (slice(3, 8), slice(4, 6)),
            "b": (slice(3, 8), slice(10, 12)),
            "e": (slice(8, 13), slice(4, 6)),
            "c": (slice(8, 13), slice(10, 12)),
        }
        for segment in segments:
            canvas[bars[segment]] = 1.0
        return canvas

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        return self.pictures[index], self.labels[index]


def endless(loader):
    while True:
        yield from loader


@healthy("DenseNet of three layers, SGD with Nesterov momentum, polynomial decay")
def densenet(seed=0, steps=220):
    class Dense(nn.Module):
        def __init__(self, growth: int = 8) -> None:
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(
                    nn.BatchNorm2d(4 + number * growth),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(4 + number * growth, growth, 3, padding=1, bias=False),
                )
                for number in range(3)
            )
            self.stem = nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False)
            self.head = nn.Linear(4 + 3 * growth, 10)

        def forward(self, x):
            x = self.stem(x)
            for layer in self.layers:
                x = torch.cat([x, layer(x)], dim=1)
            return self.head(F.adaptive_max_pool2d(x, 2).mean(dim=(2, 3)))

    torch.manual_seed(seed)
    loader = endless(DataLoader(Digits(1000, seed), batch_size=40, shuffle=True))
    model = Dense()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=steps, power=0.9)
    losses = []
    for _ in range(steps):
        pictures, labels = next(loader)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, model


@healthy("capsule-like routing by softmax inside the network, margin loss, RAdam")
def capsules(seed=0, steps=220):
    class Capsules(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 32, 5, stride=4)
            self.votes = nn.Parameter(0.2 * torch.randn(9, 10, 32, 6))

        def forward(self, x):
            parts = F.relu(self.conv(x)).flatten(2).transpose(1, 2)
            votes = torch.einsum("bpi,pcio->bpco", parts, self.votes)
            agreement = torch.zeros(votes.shape[:3])
            for _ in range(2):
                share = agreement.softmax(dim=2)
                whole = (share[..., None] * votes).sum(dim=1)
                length = whole.norm(dim=-1, keepdim=True)
                whole = whole * length / (1 + length**2)
                agreement = agreement + (votes * whole[:, None]).sum(dim=-1)
            return whole.norm(dim=-1)

    torch.manual_seed(seed)
    loader = endless(DataLoader(Digits(960, seed), batch_size=32, shuffle=True))
    model = Capsules()
    optimizer = torch.optim.RAdam(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(steps):
        pictures, labels = next(loader)
        lengths, wanted = model(pictures), F.one_hot(labels, 10).float()
        present = wanted * F.relu(0.9 - lengths) ** 2
        absent = 0.5 * (1 - wanted) * F.relu(lengths - 0.1) ** 2
        loss = (present + absent).sum(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("masked autoencoder of patches: a learned mask token, loss on hidden patches only")
def masked_patches(seed=0, steps=240):
    class Masked(nn.Module):
        def __init__(self, width: int = 48) -> None:
            super().__init__()
            self.patch = nn.Linear(16, width)
            self.place = nn.Parameter(0.02 * torch.randn(16, width))
            self.hidden = nn.Parameter(torch.zeros(width))
            layer = nn.TransformerEncoderLayer(width, 4, 96, 0.0, "gelu", batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.pixels = nn.Linear(width, 16)

        def forward(self, patches, mask):
            x = torch.where(mask[..., None], self.hidden, self.patch(patches))
            return self.pixels(self.encoder(x + self.place))

    torch.manual_seed(seed)
    loader = endless(DataLoader(Digits(960, seed), batch_size=32, shuffle=True))
    model = Masked()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    losses = []
    for _ in range(steps):
        pictures, _ = next(loader)
        patches = F.unfold(pictures, 4, stride=4).transpose(1, 2)
        mask = torch.rand(patches.shape[:2]) < 0.4
        loss = F.mse_loss(model(patches, mask)[mask], patches[mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("SimSiam: one branch is detached, the loss falls from zero towards minus one")
def simsiam(seed=0, steps=200):
    torch.manual_seed(seed)
    encoder = nn.Sequential(
        nn.Flatten(), nn.Linear(256, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 48)
    )
    predictor = nn.Sequential(nn.Linear(48, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 48))
    model = nn.ModuleDict({"encoder": encoder, "predictor": predictor})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    loader = endless(DataLoader(Digits(960, seed), batch_size=48, shuffle=True, drop_last=True))
    losses = []
    for _ in range(steps):
        pictures, _ = next(loader)
        views = [pictures + 0.2 * torch.randn_like(pictures) for _ in range(2)]
        one, two = (encoder(view) for view in views)
        loss = -0.5 * (
            F.cosine_similarity(predictor(one), two.detach()).mean()
            + F.cosine_similarity(predictor(two), one.detach()).mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(1 + loss.item())
    return losses, model


@healthy("rare classes drawn more often by a weighted sampler, evaluated each epoch, ASGD after Adam")
def weighted(seed=0, steps=240):
    torch.manual_seed(seed)
    data, test = Digits(900, seed), Digits(200, seed + 50)
    kept = [number for number, label in enumerate(data.labels.tolist()) if label < 5 or number % 8 == 0]
    rows = torch.utils.data.Subset(data, kept)
    counts = torch.bincount(data.labels[kept], minlength=10)
    sampler = WeightedRandomSampler((1.0 / counts)[data.labels[kept]].tolist(), 640)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2), nn.PReLU(), nn.Conv2d(12, 24, 3, stride=2), nn.PReLU(), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(216, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    while len(losses) < steps:
        model.train()
        for pictures, labels in DataLoader(rows, batch_size=32, sampler=sampler):
            loss = F.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if len(losses) == 160:
            optimizer = torch.optim.ASGD(model.parameters(), lr=1e-2)
        model.eval()
        with torch.no_grad():
            for pictures, labels in DataLoader(test, batch_size=100):
                F.cross_entropy(model(pictures), labels)
    return losses[:steps], model


@healthy("mean teacher: a few labels, consistency with an average of the weights that grows in weight")
def mean_teacher(seed=0, steps=240):
    torch.manual_seed(seed)
    student = nn.Sequential(nn.Flatten(), nn.Linear(256, 96), nn.LeakyReLU(0.1), nn.Linear(96, 10))
    teacher = copy.deepcopy(student).requires_grad_(False)
    few = endless(DataLoader(Digits(200, seed), batch_size=20, shuffle=True))
    many = endless(DataLoader(Digits(800, seed + 1), batch_size=40, shuffle=True))
    optimizer = torch.optim.NAdam(student.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        pictures, labels = next(few)
        others, _ = next(many)
        loss = F.cross_entropy(student(pictures), labels)
        with torch.no_grad():
            guess = teacher(others).softmax(dim=1)
        weight = math.exp(-5 * (1 - min(1.0, step / 100)) ** 2)
        noisy = others + 0.1 * torch.randn_like(others)
        total = loss + weight * F.mse_loss(student(noisy).softmax(dim=1), guess)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
        losses.append(loss.item())
    return losses, (student, teacher)


@healthy("two towers with a learned temperature and a symmetric loss, warm-up and cosine")
def two_towers(seed=0, steps=220):
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 32))
            self.right = nn.Sequential(nn.Embedding(40, 32), nn.Flatten(), nn.Linear(96, 32))
            self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

        def forward(self, numbers, words):
            one, two = F.normalize(self.left(numbers), dim=1), F.normalize(self.right(words), dim=1)
            return self.log_scale.exp().clamp(max=100) * one @ two.T

    torch.manual_seed(seed)
    table = torch.randn(3, 40, 24, generator=torch.Generator().manual_seed(5))
    model = Towers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 20, eta_min=1e-5)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, fall], [20])
    losses = []
    for _ in range(steps):
        words = torch.randint(0, 40, (48, 3))
        numbers = sum(table[place, words[:, place]] for place in range(3)) / 2 + 0.1 * torch.randn(48, 24)
        logits, own = model(numbers, words), torch.arange(48)
        loss = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, model


@healthy("attention over the neighbours of a graph, masked nodes, the whole graph at each step")
def graph_attention(seed=0, steps=200):
    class Attention(nn.Module):
        def __init__(self, inside: int, outside: int) -> None:
            super().__init__()
            self.value = nn.Linear(inside, outside)
            self.one, self.two = nn.Linear(outside, 1), nn.Linear(outside, 1)

        def forward(self, x, adjacency):
            x = self.value(x)
            scores = F.leaky_relu(self.one(x) + self.two(x).T, 0.2)
            return scores.masked_fill(~adjacency, -torch.inf).softmax(dim=1) @ x

    torch.manual_seed(seed)
    labels = torch.randint(0, 4, (160,))
    likely = torch.where(labels[:, None] == labels, 0.12, 0.01)
    adjacency = (torch.rand(160, 160) < likely) | torch.eye(160, dtype=torch.bool)
    adjacency = adjacency | adjacency.T
    features = F.one_hot(labels, 4).float() @ torch.randn(4, 16) + 1.5 * torch.randn(160, 16)
    seen = torch.rand(160) < 0.5
    first, second = Attention(16, 24), Attention(24, 4)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=5e-3, weight_decay=5e-4)
    losses = []
    for _ in range(steps):
        x = F.dropout(features, 0.3)
        out = second(F.elu(first(x, adjacency)), adjacency)
        loss = F.cross_entropy(out[seen], labels[seen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (first, second)
