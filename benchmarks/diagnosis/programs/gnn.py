"""A network on small graphs, like molecules, that looks for bonds: two batches are accumulated a step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

ATOMS = 5


def make_graph(generator: torch.Generator):
    """A random tree with a few more edges. Positive: at least two bonds join atoms of kind 0 and 1."""
    nodes = int(torch.randint(8, 16, (), generator=generator))
    atoms = torch.randint(0, ATOMS, (nodes,), generator=generator)
    parents = (torch.rand(nodes - 1, generator=generator) * torch.arange(1, nodes)).long()
    extra = torch.randint(0, nodes, (2, 3), generator=generator)
    one = torch.cat([torch.arange(1, nodes), extra[0]])
    two = torch.cat([parents, extra[1]])
    bonds = (atoms[one] + atoms[two] == 1) & (atoms[one] != atoms[two])
    label = float(bonds.sum() >= 2)
    edges = torch.stack([torch.cat([one, two]), torch.cat([two, one])])
    return atoms, edges, label


class Molecules(Dataset):
    """As many positive as negative graphs."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        kept = {0.0: [], 1.0: []}
        while min(len(each) for each in kept.values()) < count // 2:
            graph = make_graph(generator)
            if len(kept[graph[2]]) < count // 2:
                kept[graph[2]].append(graph)
        graphs = kept[0.0] + kept[1.0]
        order = torch.randperm(len(graphs), generator=generator).tolist()
        self.graphs = [graphs[number] for number in order]

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int):
        return self.graphs[index]


def collate(graphs):
    """One large graph of all: node features, edges, the graph of each node, labels."""
    atoms, edges, owner, start = [], [], [], 0
    for number, (kinds, pairs, _) in enumerate(graphs):
        atoms.append(kinds)
        edges.append(pairs + start)
        owner.append(torch.full((len(kinds),), number))
        start += len(kinds)
    labels = torch.tensor([label for _, _, label in graphs])
    features = F.one_hot(torch.cat(atoms), ATOMS).float()
    return features, torch.cat(edges, dim=1), torch.cat(owner), labels


class GINLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )

    def forward(self, x, edges):
        source, target = edges
        received = torch.zeros_like(x).index_add_(0, target, x[source])
        return self.mlp((1 + self.eps) * x + received)


def pool_mean(x, owner, graphs: int):
    total = torch.zeros(graphs, x.shape[1], dtype=x.dtype).index_add_(0, owner, x)
    count = torch.bincount(owner, minlength=graphs).unsqueeze(1)
    return total / count


class GraphNet(nn.Module):
    def __init__(self, width: int = 48, depth: int = 3) -> None:
        super().__init__()
        self.encoder = nn.Linear(ATOMS, width)
        self.layers = nn.ModuleList([GINLayer(width) for _ in range(depth)])
        self.readout = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, features, edges, owner, graphs: int):
        x = self.encoder(features)
        for layer in self.layers:
            x = layer(x, edges)
        mean = pool_mean(x, owner, graphs)
        total = torch.zeros_like(mean).index_add_(0, owner, x) / 10
        return self.readout(torch.cat([mean, total], dim=1)).squeeze(1)


def evaluate(model, loader):
    model.eval()
    right = 0
    with torch.inference_mode():
        for features, edges, owner, labels in loader:
            logits = model(features, edges, owner, len(labels))
            right += ((logits > 0).float() == labels).sum().item()
    return right / len(loader.dataset)


def main(seed: int = 0, steps: int = 220):
    torch.manual_seed(seed)
    train_set, test_set = Molecules(1600, seed), Molecules(200, seed + 321)
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True, collate_fn=collate, drop_last=True)
    test_loader = DataLoader(test_set, batch_size=100, collate_fn=collate)
    model = GraphNet()
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    accumulate = 2
    losses = []
    while len(losses) < steps:
        model.train()
        running = 0.0
        for number, (features, edges, owner, labels) in enumerate(train_loader, 1):
            logits = model(features, edges, owner, len(labels))
            loss = criterion(logits, labels) / accumulate
            loss.backward()
            running += loss.item()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                losses.append(running)
                running = 0.0
                if len(losses) >= steps:
                    break
        scheduler.step()
        evaluate(model, test_loader)
    return losses, model
