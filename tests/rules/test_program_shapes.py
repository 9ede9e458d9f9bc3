"""Faults in programs of other shapes: graphs, bags, time first, several losses, two texts, plain lists."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep.doctor.finding import Finding, Severity
from layerstep.doctor.watch import watching


def _findings(train: Callable[[], object]) -> dict[str, Finding]:
    torch.manual_seed(0)
    with watching("extreme") as doctor:
        train()
    return {each.rule: each for each in doctor.findings}


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _net(width: int = 8, out: int = 3, hidden: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))


# --- graphs: nodes one behind the other, and a tensor that tells whose they are ---


class Graphs(nn.Module):
    """The mean of what a small network makes of the nodes of each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes, self.out = _net(5, 16), nn.Linear(16, 1)

    def forward(self, kinds: Tensor, owner: Tensor, graphs: int) -> Tensor:
        x = self.nodes(kinds)
        total = torch.zeros(graphs, 16).index_add_(0, owner, x)
        return self.out(total / torch.bincount(owner, minlength=graphs)[:, None]).squeeze(1)


def _graphs(count: int) -> list[tuple[Tensor, float]]:
    made = []
    for _ in range(count):
        kinds = torch.randint(0, 5, (int(torch.randint(8, 16, ())),))
        made.append((kinds, float((kinds == 0).sum() > 2)))
    return made


def _together(graphs: list[tuple[Tensor, float]]) -> tuple[Tensor, Tensor, Tensor]:
    owner = torch.cat([torch.full((len(kinds),), at) for at, (kinds, _) in enumerate(graphs)])
    kinds = F.one_hot(torch.cat([kinds for kinds, _ in graphs]), 5).float()
    return kinds, owner, torch.tensor([label for _, label in graphs])


def _learn_graphs(*, is_sorted: bool = False, evaluated: str = "", parts: int = 1) -> None:
    graphs, others = _graphs(320), _graphs(80)
    if is_sorted:
        graphs.sort(key=lambda each: each[1])
    model = Graphs()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(4):
        order = list(range(320)) if is_sorted else torch.randperm(320).tolist()
        for at in range(0, 320, 32 * parts):
            optimizer.zero_grad()
            for part in range(parts):
                chosen = [graphs[i] for i in order[at + 32 * part : at + 32 * part + 32]]
                kinds, owner, labels = _together(chosen)
                logits = model(kinds, owner, len(labels))
                F.binary_cross_entropy_with_logits(logits, labels).backward()
            optimizer.step()
        if evaluated:
            kinds, owner, labels = _together(graphs[:100] if evaluated == "trained" else others)
            with torch.no_grad():
                model(kinds, owner, len(labels))


def test_graphs_of_few_kinds_of_nodes_are_not_taken_for_repeated_samples() -> None:
    assert not _findings(lambda: _learn_graphs(evaluated="others"))


def test_graphs_that_are_sorted_by_a_label_of_0_or_1_are_found() -> None:
    assert "sorted-data" in _findings(lambda: _learn_graphs(is_sorted=True))


def test_graphs_that_are_evaluated_and_trained_on_are_found() -> None:
    assert "evaluated-on-training-data" in _findings(lambda: _learn_graphs(evaluated="trained"))


def test_graphs_of_different_sizes_that_are_added_up_undivided_are_found() -> None:
    assert "accumulation-undivided" in _findings(lambda: _learn_graphs(parts=2))


@pytest.mark.parametrize("depth", [2, 12])
def test_a_signal_that_grows_between_the_layers_is_found(depth: int) -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(depth)])
            self.out = nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x + x.roll(1, 0) + x.roll(2, 0) + x.roll(3, 0)).relu()
            return self.out(x).squeeze(1)

    def train() -> None:
        model = Sums()
        for layer in model.layers:
            nn.init.kaiming_normal_(layer.weight)
        optimizer = torch.optim.Adam(model.parameters(), 1e-4)
        for _ in range(4):
            x = torch.randn(32, 16)
            _step(optimizer, F.mse_loss(model(x), x[:, 0]))

    assert ("init-scale" in _findings(train)) == (depth == 12)


# --- bags and time first ---


@pytest.mark.parametrize("is_same", [True, False])
def test_bags_that_are_evaluated_and_trained_on_are_found(is_same: bool) -> None:
    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.out = nn.EmbeddingBag(50, 8), nn.Linear(8, 1)

        def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
            return self.out(self.bag(ids, offsets)).squeeze(1)

    def train() -> None:
        bags = [torch.randint(0, 50, (int(torch.randint(3, 9, ())),)) for _ in range(300)]
        model = Bags()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)

        def call(chosen: list[Tensor]) -> Tensor:
            ends = torch.tensor([0, *(len(each) for each in chosen[:-1])]).cumsum(0)
            return model(torch.cat(chosen), ends)

        for _ in range(4):
            for part in torch.randperm(200).split(25):
                chosen = [bags[i] for i in part]
                labels = torch.tensor([float(each.sum() > 120) for each in chosen])
                _step(optimizer, F.binary_cross_entropy_with_logits(call(chosen), labels))
            with torch.no_grad():
                call(bags[:100] if is_same else bags[200:])

    assert ("evaluated-on-training-data" in _findings(train)) == is_same


@pytest.mark.parametrize("is_sorted", [True, False])
def test_sorted_data_are_found_where_the_time_comes_first(is_sorted: bool) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.GRU(4, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rnn(x)[1][0])

    def train() -> None:
        labels = torch.arange(300) // 100 if is_sorted else torch.arange(300) % 3
        x = torch.randn(9, 300, 4) + labels[:, None]
        model = Last()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for at in [*range(0, 300, 20)] * 2:
            _step(optimizer, F.cross_entropy(model(x[:, at : at + 20]), labels[at : at + 20]))

    assert ("sorted-data" in _findings(train)) == is_sorted


@pytest.mark.parametrize("is_sorted", [True, False])
def test_targets_that_are_numbers_and_sorted_are_noted(is_sorted: bool) -> None:
    def train() -> None:
        x = torch.randn(640, 8)
        x = x[x[:, 0].argsort()] if is_sorted else x
        model = _net(out=1)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for at in [*range(0, 640, 32)] * 2:
            part = x[at : at + 32]
            _step(optimizer, F.mse_loss(model(part).squeeze(1), part[:, 0]))

    found = _findings(train).get("sorted-data")
    assert (found is not None) == is_sorted
    assert found is None or found.severity == Severity.INFO


# --- several losses, and losses that are written out ---


def _two_tasks(loss_of: Callable[[Tensor, Tensor], Tensor], steps: int = 60, rate: float = 1e-2) -> None:
    model = _net(8, 4)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(steps):
        x = torch.randn(32, 8)
        _step(optimizer, loss_of(model(x), x))


def test_one_of_two_tasks_with_constant_labels_is_found() -> None:
    def train() -> None:
        body, one, two = _net(8, 16), nn.Linear(16, 2), nn.Linear(16, 3)
        model = nn.ModuleList([body, one, two])
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(60):
            x = torch.randn(32, 8)
            hidden = body(x).relu()
            first = F.cross_entropy(one(hidden), (x[:, 0] > 0).long())
            _step(optimizer, first + 0.5 * F.cross_entropy(two(hidden), torch.zeros(32, dtype=torch.long)))

    assert "constant-labels" in _findings(train)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_loss_that_is_taken_off_a_sum_is_found(sign: int) -> None:
    def loss_of(out: Tensor, x: Tensor) -> Tensor:
        return F.cross_entropy(out[:, :3], x[:, :3].argmax(1)) + sign * 2.0 * F.mse_loss(out[:, 3], x[:, 0])

    assert ("loss-wrong-sign" in _findings(lambda: _two_tasks(loss_of))) == (sign < 0)


def test_two_losses_that_learn_nothing_are_found_by_the_sum_of_both_guesses() -> None:
    def loss_of(out: Tensor, x: Tensor) -> Tensor:
        order = torch.randperm(len(x))
        kinds = F.cross_entropy(out[:, :3], x[order, :3].argmax(1))
        return kinds + 0.5 * F.mse_loss(out[:, 3], x[order, 0])

    assert _findings(lambda: _two_tasks(loss_of, 200))["not-learning"].severity == Severity.WARNING


_Loss = Callable[[Tensor, Tensor], Tensor]


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda out, y: F.l1_loss(out, y),
        lambda out, y: F.huber_loss(out, y),
        lambda out, y: F.smooth_l1_loss(out, y, beta=0.5),
        lambda out, y: ((out - y) ** 2).mean(),
        lambda out, y: (y - out).abs().mean(),
    ],
)
@pytest.mark.parametrize("is_apart", [True, False])
def test_targets_that_do_not_belong_to_the_rows_are_found_with_any_loss_of_numbers(
    loss_of: _Loss, is_apart: bool
) -> None:
    def train() -> None:
        model = _net(8, 1)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(200):
            x = torch.randn(64, 8)
            y = x[torch.randperm(64) if is_apart else slice(None), 0]
            _step(optimizer, loss_of(model(x).squeeze(1), y))

    assert ("not-learning" in _findings(train)) == is_apart


@pytest.mark.parametrize("is_apart", [True, False])
def test_labels_that_do_not_belong_to_the_rows_are_found_with_label_smoothing(is_apart: bool) -> None:
    def train() -> None:
        model = _net()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(200):
            x = torch.randn(64, 8)
            y = x[torch.randperm(64) if is_apart else slice(None), :3].argmax(1)
            _step(optimizer, F.cross_entropy(model(x), y, label_smoothing=0.1))

    assert ("not-learning" in _findings(train)) == is_apart


@pytest.mark.parametrize("is_softmax", [True, False])
def test_a_softmax_before_a_loss_of_probabilities_as_labels_is_found(is_softmax: bool) -> None:
    def train() -> None:
        model = _net()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(12):
            x = torch.randn(16, 8)
            out = model(x).softmax(1) if is_softmax else model(x)
            _step(optimizer, F.cross_entropy(out, x[:, :3].softmax(1)))

    assert ("loss-input-is-probability" in _findings(train)) == is_softmax


# --- parameters that the model does not know, data beside embeddings, functions ---


class Hidden(nn.Module):
    """Layers and tensors that are not registered."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        parts = [nn.Linear(8, 8) for _ in range(2)]
        self.body: Any = {"list": parts, "dict": dict(enumerate(parts)), "right": nn.ModuleList(parts)}[kind]
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.body.values() if isinstance(self.body, dict) else self.body:
            x = part(x).relu()
        return self.out(x)


@pytest.mark.parametrize("kind", ["list", "dict", "right"])
def test_layers_in_a_plain_container_are_named(kind: str) -> None:
    def train() -> None:
        model = Hidden(kind)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(12):
            x = torch.randn(32, 8)
            _step(optimizer, F.cross_entropy(model(x), x[:, :3].argmax(1)))

    found = _findings(train).get("never-updated")
    assert (found is not None) == (kind != "right")
    if found is not None:
        assert found.severity == Severity.ERROR
        assert {name.removeprefix("model.") for name in found.where.parameters} == {
            "body.0.weight",
            "body.0.bias",
            "body.1.weight",
            "body.1.bias",
        }


@pytest.mark.parametrize("is_scaled", [True, False])
def test_columns_in_their_own_units_are_found_next_to_embeddings(is_scaled: bool) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kinds, self.body = nn.Embedding(5, 4), _net(7, 1)

        def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
            return self.body(torch.cat([self.kinds(kinds), numbers], 1)).squeeze(1)

    def train() -> None:
        model = Table()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(12):
            x = torch.randn(64, 3)
            numbers = x if is_scaled else x * torch.tensor([1.0, 30.0, 20000.0])
            _step(optimizer, F.mse_loss(model(numbers, torch.randint(0, 5, (64,))), x[:, 0]))

    found = _findings(train).get("input-scale")
    assert (found is not None) == (not is_scaled)
    assert found is None or found.where.module.endswith("body.0")


@pytest.mark.parametrize("spread", [0.2, 1.0])
@pytest.mark.parametrize("is_function", [True, False])
def test_a_tanh_over_large_weights_is_found_as_a_module_and_as_a_function(
    spread: float, is_function: bool
) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.out = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 3)
            self.bend: Any = torch.tanh if is_function else nn.Tanh()
            for layer in (self.one, self.two):
                nn.init.normal_(layer.weight, std=spread)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.bend(self.two(self.bend(self.one(x)))))

    def train() -> None:
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), 1e-4)
        for _ in range(12):
            x = torch.randn(64, 32)
            _step(optimizer, F.cross_entropy(model(x), x[:, :3].argmax(1)))

    assert ("saturated-units" in _findings(train)) == (spread == 1.0)


def test_a_huber_loss_of_next_to_nothing_with_poor_evaluations_is_overfitting() -> None:
    def train() -> None:
        x, others = torch.randn(40, 20), torch.randn(200, 20)
        model, criterion = _net(20, 1, 128), nn.HuberLoss()
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for step in range(200):
            part = torch.randperm(40)[:20]
            _step(optimizer, criterion(model(x[part]).squeeze(1), x[part].sin().sum(1) / 3))
            if step % 15 == 14:
                with torch.no_grad():
                    criterion(model(others).squeeze(1), others.sin().sum(1) / 3)

    assert "overfitting" in _findings(train)


# --- large steps at first ---


def test_steps_that_were_too_large_are_named_though_the_weights_have_grown() -> None:
    def train() -> None:
        model = nn.Sequential(
            nn.Linear(16, 32),
            nn.LayerNorm(32),
            nn.Tanh(),
            nn.Linear(32, 32),
            nn.LayerNorm(32),
            nn.Linear(32, 4),
        )
        optimizer = torch.optim.AdamW(model.parameters(), 0.5)
        for _ in range(160):
            x = torch.randn(32, 16)
            _step(optimizer, F.cross_entropy(model(x), (x[:, 0] * x[:, 1] > 0).long() * 2 + (x[:, 2] > 9)))

    found = _findings(train)
    assert next(iter(found)) == "update-too-large"


# --- two texts, dictionaries, lengths ---


class Pair(nn.Module):
    """Reads one text, and lets another one ask it; the masks may be wrong."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.table, self.places = nn.Embedding(30, 16), nn.Parameter(torch.randn(20, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.ask = nn.MultiheadAttention(16, 2, batch_first=True)
        self.out = nn.Linear(16, 30)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        source, target = batch["source"], batch["target"]
        is_padding = source == 0
        masks = {"right": is_padding, "none": None, "turned": ~is_padding, "asked turned": is_padding}
        own = masks[self.kind]
        asked = ~is_padding if self.kind == "asked turned" else own
        read = self.encoder(self.table(source) + self.places[: source.shape[1]], src_key_padding_mask=own)
        query = self.table(target) + self.places[: target.shape[1]]
        return self.out(self.ask(query, read, read, key_padding_mask=asked)[0])


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("right", ""),
        ("none", "padding-attended"),
        ("turned", "mask-inverted"),
        ("asked turned", "mask-inverted"),
    ],
)
@pytest.mark.parametrize("width", [8, 12])
def test_the_padding_of_a_source_in_a_dictionary_is_tried(kind: str, rule: str, width: int) -> None:
    def train() -> None:
        model = Pair(kind)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(10):
            lengths = torch.randint(5, 12, (16,))
            source = torch.randint(1, 30, (16, 12)).masked_fill(torch.arange(12) >= lengths[:, None], 0)
            target = torch.randint(1, 30, (16, width + 1))
            logits = model({"source": source, "target": target[:, :-1]})
            _step(optimizer, F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten()))

    found = _findings(train)
    assert [each for each in ("padding-attended", "mask-inverted") if each in found] == (
        [rule] if rule else []
    )


def test_the_labels_of_a_model_that_makes_its_own_loss_are_cut_with_their_padded_tokens() -> None:
    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.rnn, self.out = nn.Embedding(30, 16), nn.GRU(16, 16), nn.Linear(16, 30)

        def forward(self, tokens: Tensor, attention_mask: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.out(self.rnn(self.table(tokens).transpose(0, 1))[0].transpose(0, 1))
            return F.cross_entropy(logits[:, :-1].flatten(0, 1), wanted[:, 1:].flatten()), logits

    def train() -> None:
        model = Writer()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(10):
            mask = (torch.arange(13) < torch.randint(7, 13, (16, 1))).long()
            tokens = torch.randint(1, 30, (16, 13)) * mask
            wanted = tokens.masked_fill(mask == 0, -100)
            _step(optimizer, model(tokens[:, :-1], mask[:, :-1], wanted[:, 1:])[0])

    assert "labels-shifted-twice" in _findings(train)


# --- losses of sequences, and several losses in an evaluation ---


@pytest.mark.parametrize(
    ("reduction", "is_softmax", "rule"),
    [
        ("mean", False, ""),
        ("mean", True, "loss-input-is-probability"),
        ("sum", False, "loss-scales-with-batch"),
    ],
)
def test_faults_of_a_ctc_loss_are_found(reduction: str, is_softmax: bool, rule: str) -> None:
    def train() -> None:
        model = _net(8, 6)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(12):
            out = model(torch.randn(16, 20, 8)).transpose(0, 1)
            scores = out.softmax(-1) if is_softmax else out.log_softmax(-1)
            lengths = torch.full((16,), 20), torch.full((16,), 4)
            labels = torch.randint(1, 6, (16, 4))
            _step(optimizer, F.ctc_loss(scores, labels, *lengths, reduction=reduction))

    found = _findings(train)
    assert (rule in found) if rule else not found


def test_an_evaluation_of_several_losses_that_gets_worse_is_overfitting() -> None:
    def train() -> None:
        x, others = torch.randn(24, 10), torch.randn(200, 10)
        model = _net(10, 4, 128)
        optimizer = torch.optim.Adam(model.parameters(), 5e-3)

        def loss_of(x: Tensor) -> Tensor:
            out = model(x)
            return F.cross_entropy(out[:, :3], x[:, :3].argmax(1)) + F.mse_loss(out[:, 3], x[:, 4] * x[:, 5])

        for step in range(400):
            _step(optimizer, loss_of(x))
            if step % 20 == 19:
                with torch.no_grad():
                    loss_of(others)

    assert "overfitting" in _findings(train)


# --- the line that makes a graph leak ---


def _mean_loss(model: nn.Module, x: Tensor) -> float:
    total = 0.0
    for part in x.split(16):
        with torch.no_grad():
            total += float(model(part).mean())
    return total


def test_the_line_of_a_leak_is_that_of_its_own_function() -> None:
    def train() -> None:
        model, total = _net(), torch.zeros(())
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(60):
            x = torch.randn(32, 8)
            loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
            _step(optimizer, loss)
            total = total + loss
        _mean_loss(model, torch.randn(32, 8))

    found = _findings(train)["graph-leak"]
    assert linecache.getline(found.where.file, found.where.line).strip() == "total = total + loss"
