"""Two towers that tell clicks and stars: attention over a history, a bag of tags, two optimizers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FILMS, GENRES, TAGS = 150, 5, 30
HISTORY = 8  # padded with 0
ACCUMULATE = 4


class Catalogue:
    """Films of a genre. Most of the tags of a film belong to its genre."""

    def __init__(self) -> None:
        self.genre = torch.randint(0, GENRES, (FILMS + 1,))
        own = self.genre[:, None] + GENRES * torch.randint(0, TAGS // GENRES, (FILMS + 1, 3))
        other = torch.randint(0, TAGS, (FILMS + 1, 3))
        self.tags = torch.where(torch.rand(FILMS + 1, 3) < 0.8, own, other)
        self.price = 5 + 3 * torch.randn(FILMS + 1)


class Visits(Dataset):
    """A user who likes one genre sees a film: was it clicked, and how many stars did it get."""

    def __init__(self, count: int, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        likes = torch.randint(0, GENRES, (count,))
        self.history = torch.zeros(count, HISTORY, dtype=torch.long)
        for row, genre in enumerate(likes.tolist()):
            films = torch.nonzero(catalogue.genre[1:] == genre).flatten() + 1
            seen = int(torch.randint(0, HISTORY + 1, ()))  # new users have none
            self.history[row, :seen] = films[torch.randint(0, len(films), (seen,))]
        same = torch.rand(count) < 0.5
        anything = torch.randint(1, FILMS + 1, (count,))
        liked = torch.stack([self.any_of(catalogue, genre) for genre in likes.tolist()])
        self.film = torch.where(same, liked, anything)
        taste = 4.0 * (catalogue.genre[self.film] == likes).float() - 0.1 * catalogue.price[self.film]
        taste = taste + 0.5 * torch.randn(count)
        self.clicked = (taste > 1.5).float()
        self.stars = (taste - taste.mean()) / taste.std()

    @staticmethod
    def any_of(catalogue: Catalogue, genre: int) -> torch.Tensor:
        films = torch.nonzero(catalogue.genre[1:] == genre).flatten() + 1
        return films[torch.randint(0, len(films), ())]

    def __len__(self) -> int:
        return len(self.film)

    def __getitem__(self, index):
        film = self.film[index]
        price = (self.catalogue.price[film] - 5) / 3
        return (self.history[index], film, self.catalogue.tags[film], price), (
            self.clicked[index],
            self.stars[index],
        )


class Recommender(nn.Module):
    def __init__(self, width: int = 24, hidden: int = 48, dropout: float = 0.1) -> None:
        super().__init__()
        self.films = nn.Embedding(FILMS + 1, width, padding_idx=0, sparse=True)
        self.tags = nn.EmbeddingBag(TAGS, width, mode="mean", sparse=True)
        self.interest = nn.Linear(width, 1)
        self.user = self.tower(width, hidden, width, dropout)
        self.item = self.tower(2 * width + 1, hidden, width, dropout)
        self.bias = nn.Parameter(torch.zeros(1))
        self.stars = nn.Sequential(nn.Linear(3 * width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    @staticmethod
    def tower(inside: int, hidden: int, outside: int, dropout: float) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(inside, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, outside)
        )

    def pooled(self, history):
        watched = self.films(history)
        weights = self.interest(watched).squeeze(-1)
        weights = weights.masked_fill(history == 0, -1e4).softmax(dim=1)
        known = (history != 0).any(dim=1, keepdim=True)
        return known * (weights[..., None] * watched).sum(dim=1)

    def forward(self, history, film, tags, price):
        user = self.user(self.pooled(history))
        item = self.item(torch.cat([self.films(film), self.tags(tags), price[:, None]], dim=1))
        click = (user * item).sum(dim=1) + self.bias
        stars = self.stars(torch.cat([user, item, user * item], dim=1)).squeeze(-1)
        return click, stars


def objective(click, stars, clicked, rated):
    click_loss = F.binary_cross_entropy_with_logits(click, clicked)
    star_loss = F.mse_loss(stars, rated)
    return click_loss + 0.5 * star_loss


def evaluate(model, loader):
    model.eval()
    total, right, seen = 0.0, 0, 0
    with torch.no_grad():
        for inputs, (clicked, rated) in loader:
            click, stars = model(*inputs)
            total += objective(click, stars, clicked, rated).item() * len(clicked)
            right += ((click > 0) == (clicked > 0.5)).sum().item()
            seen += len(clicked)
    return total / seen, right / seen


def train_epoch(model, loader, optimizers, losses, steps):
    model.train()
    running = 0.0
    for number, (inputs, (clicked, rated)) in enumerate(loader, start=1):
        click, stars = model(*inputs)
        loss = objective(click, stars, clicked, rated)
        (loss / ACCUMULATE).backward()
        running += loss.item()
        if number % ACCUMULATE == 0:
            for optimizer in optimizers:
                optimizer.step()
            for optimizer in optimizers:
                optimizer.zero_grad()
            losses.append(running / ACCUMULATE)
            running = 0.0
        if len(losses) >= steps:
            return


def main(seed: int = 0, steps: int = 225):
    torch.manual_seed(seed)
    catalogue = Catalogue()
    train_set, val_set = Visits(1440, catalogue), Visits(288, catalogue)
    train_loader = DataLoader(train_set, batch_size=8, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=96)
    model = Recommender()
    sparse = torch.optim.SparseAdam([model.films.weight, model.tags.weight], lr=1e-2)
    dense = torch.optim.SGD(
        [each for name, each in model.named_parameters() if not name.startswith(("films", "tags"))],
        lr=0.05,
        momentum=0.9,
    )
    schedulers = [torch.optim.lr_scheduler.StepLR(each, step_size=1, gamma=0.7) for each in (sparse, dense)]
    losses: list[float] = []
    while len(losses) < steps:
        train_epoch(model, train_loader, (sparse, dense), losses, steps)
        evaluate(model, val_loader)
        for scheduler in schedulers:
            scheduler.step()
    return losses, model
