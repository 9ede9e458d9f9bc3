"""Healthy trainings of many kinds: the doctor says nothing of severity warning or worse about any of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep.doctor.finding import Severity
from layerstep.doctor.watch import watching

Train = Callable[[], None]
HEALTHY: list[Train] = []
LONG: list[Train] = []


def healthy(train: Train) -> Train:
    HEALTHY.append(train)
    return train


def long(train: Train) -> Train:
    LONG.append(train)
    return train


def mlp(width: int, out: int, hidden: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))


def classes(count: int, width: int = 8, kinds: int = 4) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, width)
    return x, x[:, :kinds].argmax(1)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def adam(*models: nn.Module, lr: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for model in models for p in model.parameters()], lr)


@healthy
def full_batch() -> None:
    x, y = classes(64)
    model = mlp(8, 4)
    optimizer = adam(model)
    for _ in range(250):
        step(optimizer, F.cross_entropy(model(x), y))


@healthy
def four_rows_of_xor() -> None:
    x = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]])
    y = torch.tensor([[0.0], [1], [1], [0]])
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = adam(model, lr=0.05)
    for _ in range(300):
        step(optimizer, F.binary_cross_entropy_with_logits(model(x), y))


@healthy
def noisy_labels() -> None:
    model = mlp(8, 4)
    optimizer = adam(model)
    for _ in range(250):
        x, y = classes(64)
        y = torch.where(torch.rand(64) < 0.4, torch.randint(0, 4, (64,)), y)
        step(optimizer, F.cross_entropy(model(x), y))


@healthy
def two_tasks_at_once() -> None:
    trunk, one, two = nn.Linear(8, 32), nn.Linear(32, 4), nn.Linear(32, 1)
    model = nn.ModuleList([trunk, one, two])
    optimizer = adam(model)
    for _ in range(200):
        x, y = classes(64)
        features = trunk(x).relu()
        loss = F.cross_entropy(one(features), y) + 0.3 * F.mse_loss(two(features)[:, 0], x[:, 0])
        step(optimizer, loss)


@healthy
def gan() -> None:
    generator, judge = mlp(4, 2), mlp(2, 1)
    of_generator, of_judge = adam(generator, lr=1e-3), adam(judge, lr=1e-3)
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
    for _ in range(200):
        real = torch.randn(32, 2) * 0.5 + 1
        with torch.no_grad():
            fake = generator(torch.randn(32, 4))
        loss = F.binary_cross_entropy_with_logits(judge(real), ones)
        loss = loss + F.binary_cross_entropy_with_logits(judge(fake), zeros)
        step(of_judge, loss)
        loss = F.binary_cross_entropy_with_logits(judge(generator(torch.randn(32, 4))), ones)
        step(of_generator, loss)


@healthy
def gan_that_maximises() -> None:
    """The minimax loss of the generator is the judge's with a minus."""
    generator, judge = nn.Sequential(mlp(4, 2), nn.BatchNorm1d(2)), mlp(2, 1)
    of_generator, of_judge = adam(generator, lr=1e-3), adam(judge, lr=1e-3)
    for _ in range(150):
        real, fake = torch.randn(32, 2) + 1, generator(torch.randn(32, 4))
        score = judge(torch.cat([real, fake.detach()]))
        truth = torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])
        step(of_judge, F.binary_cross_entropy_with_logits(score, truth))
        score = judge(generator(torch.randn(32, 4)))
        step(of_generator, -F.binary_cross_entropy_with_logits(score, torch.zeros(32, 1)))


@healthy
def wasserstein_critic() -> None:
    generator, critic = mlp(4, 2), mlp(2, 1)
    of_generator = torch.optim.RMSprop(generator.parameters(), 5e-4)
    of_critic = torch.optim.RMSprop(critic.parameters(), 5e-4)
    for _ in range(80):
        for _ in range(3):
            real = torch.randn(32, 2) + 2
            with torch.no_grad():
                fake = generator(torch.randn(32, 4))
            step(of_critic, critic(fake).mean() - critic(real).mean())
            with torch.no_grad():
                for p in critic.parameters():
                    p.clamp_(-0.1, 0.1)
        step(of_generator, -critic(generator(torch.randn(32, 4))).mean())


@healthy
def vae_with_a_summed_loss() -> None:
    encoder, decoder = nn.Linear(16, 8), nn.Linear(4, 16)
    model = nn.ModuleList([encoder, decoder])
    optimizer = adam(model, lr=1e-3)
    basis = torch.randn(4, 16)
    for _ in range(200):
        x = torch.sigmoid(torch.randn(64, 4) @ basis)
        mean, log_variance = encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        error = F.binary_cross_entropy_with_logits(decoder(z), x, reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
        step(optimizer, error + divergence)


@healthy
def contrastive() -> None:
    model = mlp(16, 8)
    optimizer = adam(model, lr=1e-3)
    for _ in range(200):
        x = torch.randn(32, 16)
        a, b = (F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=-1) for _ in range(2))
        step(optimizer, F.cross_entropy(a @ b.T / 0.2, torch.arange(32)))


@healthy
def contrast_with_a_queue() -> None:
    """The right one is always the first: every label is 0."""
    model = mlp(16, 8)
    optimizer = adam(model, lr=1e-3)
    queue = F.normalize(torch.randn(63, 8), dim=-1)
    for _ in range(200):
        x = torch.randn(32, 16)
        a, b = (F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=-1) for _ in range(2))
        good, bad = (a * b.detach()).sum(-1, keepdim=True), a @ queue.T
        logits = torch.cat([good, bad], 1) / 0.2
        step(optimizer, F.cross_entropy(logits, torch.zeros(32, dtype=torch.long)))


@healthy
def both_ways_by_hand() -> None:
    """Similarities of pairs: the softmax runs over rows and over columns."""
    image, text = nn.Linear(16, 8), nn.Linear(16, 8)
    model = nn.ModuleList([image, text])
    optimizer = adam(model, lr=1e-3)
    for _ in range(150):
        x = torch.randn(24, 16)
        logits = image(x) @ text(x + 0.1 * torch.randn_like(x)).T
        loss = -(F.log_softmax(logits, 0).diagonal().mean() + F.log_softmax(logits, 1).diagonal().mean())
        step(optimizer, loss)


class Words(nn.Module):
    def __init__(self, kind: str = "gru") -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 24)
        self.rnn = nn.GRU(24, 32, batch_first=True) if kind == "gru" else nn.LSTM(24, 32, batch_first=True)
        self.head = nn.Linear(32, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0])


def sentences(count: int, length: int = 16) -> Tensor:
    start = torch.randint(0, 32, (count, 1))
    return (start + 3 * torch.arange(length + 1)) % 32


@healthy
def language_model() -> None:
    model = Words()
    optimizer = adam(model, lr=3e-3)
    for _ in range(150):
        tokens = sentences(16)
        logits = model(tokens[:, :-1])
        step(optimizer, F.cross_entropy(logits.reshape(-1, 32), tokens[:, 1:].reshape(-1)))


@healthy
def masked_words() -> None:
    model = Words("lstm")
    optimizer = adam(model, lr=3e-3)
    for _ in range(120):
        tokens = sentences(16)[:, :-1]
        hidden = torch.rand(tokens.shape) < 0.2
        labels = tokens.masked_fill(~hidden, -100)
        logits = model(tokens.masked_fill(hidden, 0))
        step(optimizer, F.cross_entropy(logits.flatten(0, 1), labels.flatten()))


@healthy
def bigrams() -> None:
    """The same letter is followed by different ones: that is the data."""
    model = nn.Embedding(16, 16)
    optimizer = adam(model, lr=0.05)
    table = torch.rand(16, 16) ** 4
    for _ in range(250):
        now = torch.randint(0, 16, (64,))
        step(optimizer, F.cross_entropy(model(now), torch.multinomial(table[now], 1)[:, 0]))


@healthy
def regression_of_large_targets() -> None:
    model = mlp(4, 1)
    optimizer = adam(model, lr=0.1)
    for _ in range(250):
        x = torch.randn(64, 4)
        step(optimizer, F.mse_loss(model(x)[:, 0], 1000 * x[:, 0] + 5000))


@healthy
def regression_of_small_targets() -> None:
    model = mlp(4, 1)
    optimizer = adam(model, lr=1e-3)
    for _ in range(250):
        x = torch.randn(64, 4)
        step(optimizer, F.l1_loss(model(x), 1e-4 * x[:, :1]))


@healthy
def physics() -> None:
    """The residual of an equation should be zero, so all targets are."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = adam(model, lr=3e-3)
    for _ in range(200):
        t = torch.rand(64, 1, requires_grad=True)
        u = model(t)
        (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        start = model(torch.zeros(1, 1)) - 1
        step(optimizer, F.mse_loss(slope + u, torch.zeros_like(u)) + start.pow(2).mean())


@healthy
def gaussian_likelihood() -> None:
    """Its loss is negative, as it may be."""
    model = mlp(4, 2)
    optimizer = adam(model, lr=3e-3)
    for _ in range(250):
        x = torch.randn(64, 4)
        mean, log_std = model(x).chunk(2, -1)
        y = x[:, :1] + 0.01 * torch.randn(64, 1)
        step(optimizer, (log_std + 0.5 * ((y - mean) / log_std.exp()) ** 2).mean())


@healthy
def training_that_is_done() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(32, 4)
    y = x @ torch.tensor([[1.0], [2], [3], [4]])
    for _ in range(400):
        step(optimizer, F.mse_loss(model(x), y))


@healthy
def schedule_that_ends_at_zero() -> None:
    model = mlp(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    for _ in range(200):
        x, y = classes(64)
        step(optimizer, F.cross_entropy(model(x), y))
        schedule.step()


@healthy
def early_stopping() -> None:
    model, criterion = mlp(16, 2, 64), nn.CrossEntropyLoss()
    optimizer = adam(model, lr=3e-3)
    x, x_test = torch.randn(128, 16), torch.randn(128, 16)
    y, y_test = ((each[:, 0] + torch.randn(128) > 0).long() for each in (x, x_test))
    best, worse = math.inf, 0
    while worse < 4:
        model.train()
        for part in torch.randperm(128).split(32):
            step(optimizer, criterion(model(x[part]), y[part]))
        model.eval()
        with torch.no_grad():
            value = criterion(model(x_test), y_test).item()
        best, worse = min(best, value), 0 if value < best else worse + 1


@healthy
def fine_tuning() -> None:
    model = mlp(8, 4)
    x, y = classes(512)
    before = adam(model)
    for _ in range(150):
        step(before, F.cross_entropy(model(x), y))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    for part in torch.arange(512).repeat(5).split(32):
        step(optimizer, F.cross_entropy(model(x[part]), y[part]))


@healthy
def rare_class() -> None:
    model = mlp(8, 2)
    optimizer = adam(model, lr=3e-3)
    for _ in range(200):
        x = torch.randn(64, 8)
        step(optimizer, F.cross_entropy(model(x), (x[:, 0] > 2.2).long()))


@healthy
def policy_gradient() -> None:
    """Its loss says nothing about how good it is."""
    policy = mlp(4, 2)
    optimizer = adam(policy, lr=3e-3)
    for _ in range(150):
        state = torch.randn(64, 4)
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=policy(state)).sample()
        reward = (action == (state[:, 0] > 0)).float()
        costs = F.cross_entropy(policy(state), action, reduction="none")
        step(optimizer, (costs * (reward - reward.mean())).mean())


@healthy
def value_learning() -> None:
    """The targets grow as the values do, and the loss with them."""
    values = mlp(4, 2)
    target = mlp(4, 2)
    optimizer = adam(values, lr=3e-3)
    for at in range(300):
        if at % 20 == 0:
            target.load_state_dict(values.state_dict())
        state, following = torch.randn(64, 4), torch.randn(64, 4)
        action = torch.randint(0, 2, (64,))
        reward = 1 + (action == (state[:, 0] > 0)).float()
        with torch.no_grad():
            wanted = reward + 0.95 * target(following).max(1).values
        chosen = values(state).gather(1, action[:, None])[:, 0]
        step(optimizer, F.smooth_l1_loss(chosen, wanted))


@healthy
def several_epochs_on_what_was_played() -> None:
    model = mlp(6, 3)
    optimizer = adam(model, lr=1e-3)
    for _ in range(25):
        x, y = classes(64, 6, 3)
        for _ in range(4):
            step(optimizer, F.cross_entropy(model(x), y))


@healthy
def accumulation() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = adam(model)
    for _ in range(80):
        optimizer.zero_grad()
        for _ in range(4):
            x, y = classes(16)
            (F.cross_entropy(model(x), y) / 4).backward()
        optimizer.step()


@healthy
def one_sample_at_a_time() -> None:
    model = mlp(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(400):
        x, y = classes(1)
        step(optimizer, F.cross_entropy(model(x), y))


@healthy
def guesses_with_dropout_on() -> None:
    """Several passes over the same samples measure how sure the model is."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))
    optimizer = adam(model)
    probe = torch.randn(32, 8)
    for _ in range(4):
        for _ in range(15):
            x, y = classes(32)
            step(optimizer, F.cross_entropy(model(x), y))
        with torch.no_grad():
            torch.stack([model(probe).softmax(-1) for _ in range(6)]).var(0)


@healthy
def distances_of_all_pairs() -> None:
    """A difference of all pairs is broadcast on purpose."""
    model = mlp(4, 2)
    optimizer = adam(model, lr=3e-3)
    x = torch.randn(24, 4)
    wanted = (x[:, None] - x[None]).pow(2).sum(-1)
    for _ in range(150):
        z = model(x)
        found = (z[:, None] - z[None]).pow(2).sum(-1)
        step(optimizer, ((found - wanted) ** 2).mean())


@healthy
def center_of_points() -> None:
    """One value is fitted to many."""
    center = nn.ParameterList([nn.Parameter(torch.zeros(2))])
    optimizer = adam(center, lr=0.05)
    for _ in range(150):
        step(optimizer, ((center[0] - (torch.randn(64, 2) + 3)) ** 2).mean())


@healthy
def segmentation() -> None:
    """The labels of one image resemble each other."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
    optimizer = adam(model)
    for _ in range(60):
        y = torch.randint(0, 3, (4, 1, 1)).repeat(1, 12, 12)
        y[:, :2] = 0
        x = y[:, None].float() / 2 + 0.2 * torch.randn(4, 1, 12, 12)
        step(optimizer, F.cross_entropy(model(x), y))


@healthy
def tanh_images() -> None:
    """The last tanh is flat: black is black."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 64), nn.Tanh())
    optimizer = adam(model)
    basis = torch.randn(8, 64) * 4
    for _ in range(200):
        z = torch.randn(64, 8)
        step(optimizer, F.mse_loss(model(z), (z @ basis).sign()))


@long
def long_language_model() -> None:
    model = Words("lstm")
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=800)
    for _ in range(800):
        tokens = sentences(16)
        logits = model(tokens[:, :-1])
        step(optimizer, F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))
        schedule.step()


@long
def long_edge_of_stability() -> None:
    """Plain descent on the whole data at a large rate: the loss falls in small jumps."""
    x, y = classes(128)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(1500):
        step(optimizer, F.cross_entropy(model(x), y))


@long
def long_small_batches() -> None:
    model = mlp(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(3000):
        x, y = classes(4)
        step(optimizer, F.cross_entropy(model(x), y))


@long
def long_two_batches_in_turn() -> None:
    """Two batches of a constant order have two different losses in turn."""
    x, y = classes(64)
    y[32:] = torch.randint(0, 4, (32,))
    model = mlp(8, 4, 8)
    optimizer = adam(model)
    for at in range(600):
        part = slice(0, 32) if at % 2 else slice(32, 64)
        step(optimizer, F.cross_entropy(model(x[part]), y[part]))


def _bad_ones(train: Train) -> Iterator[str]:
    torch.manual_seed(0)
    with watching("extreme") as doctor:
        train()
    for each in doctor.findings:
        if each.severity.rank >= Severity.WARNING.rank:
            yield f"{each.code} {each.rule}: {each.text}"


@pytest.mark.parametrize("train", HEALTHY, ids=lambda train: train.__name__)
def test_a_healthy_training_hears_nothing(train: Train) -> None:
    assert not list(_bad_ones(train))


@pytest.mark.long
@pytest.mark.parametrize("train", LONG, ids=lambda train: train.__name__)
def test_a_long_healthy_training_hears_nothing(train: Train) -> None:
    assert not list(_bad_ones(train))
