"""Faults in programs of other styles: functions of tensors, steps by hand, attention written out, loaders."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from layerstep.doctor.finding import Finding, Severity
from layerstep.doctor.watch import watching


def _findings(train: Callable[[], object]) -> list[Finding]:
    torch.manual_seed(0)
    with watching("extreme") as doctor:
        train()
    return doctor.findings


def _first(train: Callable[[], object]) -> str:
    findings = _findings(train)
    return findings[0].rule if findings else ""


def _warnings(train: Callable[[], object]) -> list[str]:
    return [each.rule for each in _findings(train) if each.severity is not Severity.INFO]


def _rows() -> tuple[Tensor, Tensor]:
    rows = torch.randn(32, 8)
    return rows, rows[:, :3].argmax(1)


# --- a model that is a function of tensors ---


def _functional(*, scale: float = 0.3, left_out: bool = False, number: bool = False) -> None:
    first, second = (
        (scale * torch.randn(8, 16)).requires_grad_(),
        (scale * torch.randn(16, 3)).requires_grad_(),
    )
    optimizer = torch.optim.SGD([first] if left_out else [first, second], 0.1)
    for _ in range(40):
        rows, labels = _rows()
        loss = F.cross_entropy(torch.relu(rows @ first) @ second, labels)
        if number:
            loss = torch.tensor(loss.item(), requires_grad=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_tensor_that_was_left_out_of_the_optimizer_has_the_name_of_its_variable() -> None:
    finding = _findings(lambda: _functional(left_out=True))[0]
    assert finding.rule == "never-updated"
    assert finding.where.parameters == ("second",)


def test_tensors_that_begin_constant_stay_alike() -> None:
    assert _first(lambda: _functional(scale=0.0)) == "units-alike"


def test_a_loss_made_anew_from_its_number_reaches_nothing() -> None:
    assert _first(lambda: _functional(number=True)) == "no-gradient-path"


def test_a_sound_function_of_tensors_gets_no_warning() -> None:
    assert _warnings(_functional) == []


# --- steps by hand ---


def _by_hand(*, clears: bool = True, skipped: int = 0) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    for _ in range(60):
        rows, labels = _rows()
        F.cross_entropy(model(rows), labels).backward()
        with torch.no_grad():
            for parameter in list(model.parameters())[skipped:]:
                assert parameter.grad is not None
                parameter -= 0.1 * parameter.grad
        if clears:
            model.zero_grad()


def test_gradients_that_steps_by_hand_do_not_clear() -> None:
    assert _first(lambda: _by_hand(clears=False)) == "stale-gradients"


def test_parameters_that_steps_by_hand_leave_out() -> None:
    finding = _findings(lambda: _by_hand(skipped=2))[0]
    assert finding.rule == "never-updated"
    assert set(finding.where.parameters) == {"0.weight", "0.bias"}


def test_sound_steps_by_hand_get_no_warning() -> None:
    assert _warnings(_by_hand) == []


def test_an_optimizer_that_never_steps() -> None:
    def train() -> None:
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(90):
            rows, labels = _rows()
            F.cross_entropy(model(rows), labels).backward()
            optimizer.zero_grad()

    assert _first(train) == "never-updated"


def test_passes_that_are_made_for_the_gradient_of_the_input_get_no_warning() -> None:
    def attack() -> None:
        model, (rows, labels) = nn.Linear(8, 3), _rows()
        rows.requires_grad_()
        for _ in range(90):
            F.cross_entropy(model(rows), labels).backward()

    assert _warnings(attack) == []


# --- samples that act on each other ---


class Reader(nn.Module):
    def __init__(self, dim: int, *, has_positions: bool = True) -> None:
        super().__init__()
        self.dim, self.has_positions = dim, has_positions
        self.embed, self.mix = nn.Linear(4, 16), nn.Linear(16, 48)
        self.positions = nn.Parameter(0.3 * torch.randn(6, 16))
        self.head = nn.Linear(16, 2)

    def attention(self, x: Tensor) -> Tensor:
        query, key, value = self.mix(x).chunk(3, dim=-1)
        return x + (query @ key.transpose(1, 2) / 4).softmax(dim=self.dim) @ value

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.positions if self.has_positions else x
        return self.head(self.attention(x).mean(dim=1))


def _read(model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(30):
        x = torch.randn(16, 6, 4)
        loss = F.cross_entropy(model(x), (x[:, 0, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_an_attention_over_the_batch() -> None:
    assert _first(lambda: _read(Reader(0))) == "softmax-over-batch"
    assert "softmax-over-batch" not in _warnings(lambda: _read(Reader(-1)))


class NamedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.inner(x, x, x, need_weights=False)[0]
        return made


class Patches(Reader):
    def __init__(self, *, has_positions: bool) -> None:
        super().__init__(-1, has_positions=has_positions)
        self.reader = NamedAttention()

    def attention(self, x: Tensor) -> Tensor:
        return x + self.reader(x)


@pytest.mark.parametrize("has_positions", [True, False])
def test_places_whose_order_makes_no_difference(has_positions: bool) -> None:
    rules = [each.rule for each in _findings(lambda: _read(Patches(has_positions=has_positions)))]
    assert ("order-ignored" in rules) is not has_positions


# --- slopes of zero, passes that are cleared, optimizers that step together ---


def test_a_rounding_in_the_model_has_a_slope_of_zero() -> None:
    def train() -> None:
        before, after = nn.Linear(8, 16), nn.Linear(16, 3)
        optimizer = torch.optim.SGD([*before.parameters(), *after.parameters()], 0.1)
        for _ in range(40):
            rows, labels = _rows()
            loss = F.cross_entropy(after((3 * before(rows)).round()), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    finding = _findings(train)[0]
    assert finding.rule == "no-gradient-path"
    assert set(finding.where.parameters) == {"before.weight", "before.bias"}


@pytest.mark.parametrize("inside", [True, False])
def test_gradients_that_each_batch_of_a_step_clears(inside: bool) -> None:
    def train() -> None:
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(30):
            optimizer.zero_grad()
            for _ in range(4):
                rows, labels = _rows()
                if inside:
                    optimizer.zero_grad()
                (F.cross_entropy(model(rows), labels) / 4).backward()
            optimizer.step()

    assert ("never-updated" in _warnings(train)) is inside


def test_two_optimizers_that_step_together_get_the_same_losses() -> None:
    def train() -> None:
        body, head = nn.Linear(8, 16), nn.Linear(16, 3)
        both = torch.optim.Adam(body.parameters(), 0.001), torch.optim.SGD(head.parameters(), 0.01)
        for _ in range(30):
            for _ in range(4):
                rows, labels = _rows()
                F.cross_entropy(head(body(rows).relu()), labels).backward()
            for optimizer in both:
                optimizer.step()
                optimizer.zero_grad()

    assert "accumulation-undivided" in _warnings(train)


# --- losses ---


def test_a_prediction_that_is_paired_with_all_targets_in_a_loss_of_the_programs_own() -> None:
    def train() -> None:
        model = nn.Linear(8, 5)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(20):
            rows, _ = _rows()
            gap = (rows[:, 0, None, None] - model(rows)) / 2
            loss = torch.logsumexp(gap**2, dim=-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert _first(train) == "loss-broadcast"


@pytest.mark.parametrize("sign", [1, -1])
def test_a_policy_gradient_without_its_minus_is_a_note(sign: int) -> None:
    def train() -> None:
        model = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(20):
            rows, labels = _rows()
            chosen = torch.distributions.Categorical(logits=model(rows))
            actions = chosen.sample()
            earned = (actions == labels).float() - 0.3
            loss = sign * (chosen.log_prob(actions) * earned).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert ("loss-wrong-sign" in [each.rule for each in _findings(train)]) is (sign == 1)


def test_a_batch_with_a_single_one_among_zeros_is_no_outlier_of_a_loss_that_is_nan() -> None:
    def train() -> None:
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(12):
            rows, targets = torch.randn(8, 8), torch.zeros(8, 1)
            targets[0] = 1.0
            made = model(rows) if step < 8 else model(rows).sub(1e9).log()
            loss = F.binary_cross_entropy_with_logits(made, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert _first(train) == "non-finite"


# --- splits ---


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples that are never the same twice."""

    def __init__(self) -> None:
        self.rows, self.labels = torch.randn(96, 8), torch.randint(0, 3, (96,))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.rows[index] + 0.1 * torch.randn(8), self.labels[index]


@pytest.mark.parametrize("first", [64, 32])
def test_splits_of_one_dataset_that_overlap(first: int) -> None:
    def train() -> None:
        data, model = Noisy(), nn.Linear(8, 3)
        training = DataLoader(Subset(data, range(64)), 8, shuffle=True)
        evaluation = DataLoader(Subset(data, range(first, 96)), 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            for rows, labels in training:
                loss = F.cross_entropy(model(rows), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                for rows, _ in evaluation:
                    model(rows)

    found = [each for each in _findings(train) if each.rule == "evaluated-on-training-data"]
    assert [each.evidence["trained on"] for each in found] == ([32] if first == 32 else [])
