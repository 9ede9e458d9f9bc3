"""The doctor keeps to its level: it looks at fewer steps, and rests where even watching is dear."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from layerstep.doctor import budget
from layerstep.doctor.budget import Attention, Budget, Level
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.watch import Watch, watching

FIRST, REST = 30, 25


def _run(level: Level, *, step: float, watch: float, look: float, steps: int) -> tuple[Budget, float]:
    """A run whose costs are known; the budget, and the share that was spent in the last half."""
    kept, spent = Budget(level), []
    while kept.steps < steps:
        attention = kept.next()
        if attention is Attention.REST:
            spent += [budget.RESTING] * kept.rest
            kept.rested(kept.rest * (step + budget.RESTING))
            continue
        own = watch + (look if attention is Attention.LOOK else 0.0)
        spent.append(own + budget.UNMEASURED)
        kept.stepped(step + spent[-1], own, was_look=attention is Attention.LOOK)
    late = spent[len(spent) // 2 :]
    return kept, sum(late) / (len(late) * step)


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("step", [0.001, 0.004, 0.02, 0.1, 1.0])
def test_a_level_is_kept_whatever_a_step_takes(level: Level, step: float) -> None:
    _, share = _run(level, step=step, watch=0.0002, look=0.03, steps=40_000)
    assert share <= 1.1 * level.share


def test_long_steps_are_all_watched_and_the_level_is_used() -> None:
    kept, share = _run(Level.ADVANCED, step=0.1, watch=0.0002, look=0.03, steps=2000)
    assert kept.rest == 0
    assert share > 0.05


def test_the_first_steps_are_looked_at_and_watched_whatever_they_cost() -> None:
    kept = Budget(Level.BASIC)
    seen = []
    for _ in range(budget.WATCHED_AT_FIRST):
        seen.append(kept.next())
        kept.stepped(0.011, 0.01, was_look=seen[-1] is Attention.LOOK)
    assert seen[: budget.LOOKS_AT_FIRST] == [Attention.LOOK] * budget.LOOKS_AT_FIRST
    assert Attention.REST not in seen
    assert kept.next() is Attention.REST


def test_one_slow_look_does_not_make_looks_rare() -> None:
    """The first look imports and searches; what it takes is taken once."""
    kept = Budget(Level.ADVANCED)
    for number in range(20):
        is_look = kept.next() is Attention.LOOK
        own = 0.0 if not is_look else 0.015 if number else 5.0
        kept.stepped(0.1 + own, own, was_look=is_look)
    assert kept.every == 2


def test_the_cost_says_what_the_beginning_took_and_that_there_are_rests() -> None:
    kept, _ = _run(Level.BASIC, step=0.001, watch=0.0002, look=0.003, steps=20_000)
    words = kept.words()
    assert " s in the first 500 steps, since then takes " in words
    assert "may take 2%" in words
    assert f"watches 20 steps and rests for {kept.rest:,} in turn" in words


def test_a_beginning_that_costs_more_than_the_level_says_why() -> None:
    kept, _ = _run(Level.BASIC, step=0.01, watch=0.0006, look=0.003, steps=100)
    assert "may take 2%; watches each of the first 500 steps; looks at one step in" in kept.words()
    kept, _ = _run(Level.BASIC, step=0.1, watch=0.0006, look=0.003, steps=100)
    assert "the first 500" not in kept.words()


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A doctor that finds watching dear after a few steps, so that it rests most of the time."""
    monkeypatch.setattr(budget, "WATCHED_AT_FIRST", FIRST)
    monkeypatch.setattr(budget, "LONGEST_REST", REST)
    monkeypatch.setattr(Level, "share", property(lambda level: 1e-9))
    yield


def _train(model: nn.Module, steps: int, *, lr: float = 0.1) -> Iterator[int]:
    """Yields before each step."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(1, steps + 1):
        yield step
        x = torch.randn(16, 4)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 3))


def _told(watch: Watch) -> list[StepFacts]:
    steps: list[StepFacts] = []
    watch.doctor.steppers.append(steps.append)
    return steps


@pytest.mark.usefixtures("dear")
def test_a_step_tells_how_many_before_it_were_not_watched() -> None:
    with watching("extreme") as watch:
        steps = _told(watch)
        for _ in _train(_model(), 150):
            pass
    assert 40 < len(steps) < 150
    assert sum(step.unseen for step in steps) == steps[-1].number - len(steps)
    assert all(now.number - before.number == now.unseen + 1 for before, now in itertools.pairwise(steps))
    assert max(step.unseen for step in steps) == REST


@pytest.mark.usefixtures("dear")
def test_a_rest_leaves_nothing_on_backward() -> None:
    bare = torch.autograd.backward
    with watching() as watch:
        for step in _train(_model(), FIRST + 10):
            assert (torch.autograd.backward is bare) == (step > FIRST)
        assert watch.doctor.budget.rest == REST
    assert torch.autograd.backward is bare


@pytest.mark.usefixtures("dear")
def test_an_evaluation_in_a_rest_is_seen() -> None:
    model = _model()
    with watching() as watch:
        for step in _train(model, FIRST + 15):
            if step in (FIRST + 5, FIRST + 10):
                with torch.no_grad():
                    model(torch.randn(8, 4))
    evaluations = watch.doctor.diagnosis.run.evaluations
    assert [(each.step, each.samples) for each in evaluations] == [(FIRST + 4, 8), (FIRST + 9, 8)]
    assert [each.rule for each in watch.findings] == ["evaluated-in-training-mode"]


@pytest.mark.usefixtures("dear")
def test_parameters_that_a_rest_made_bad_are_found_when_the_run_ends() -> None:
    model = _model()
    with watching() as watch:
        for step in _train(model, FIRST + 10):
            if step == FIRST + 5:
                with torch.no_grad():
                    next(model.parameters()).fill_(math.nan)
    found = next(each for each in watch.findings if each.rule == "non-finite")
    assert found.evidence["steps before it that were not watched"] == 10
    assert found.where.parameters[0] == "0.weight"


@pytest.mark.usefixtures("dear")
def test_gradients_that_are_never_cleared_are_found_after_a_rest() -> None:
    model, optimizer = _model(), None
    with watching() as watch:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for step in range(120):
            x = torch.randn(16, 4)
            if step < FIRST + 5:
                optimizer.zero_grad()
            functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
            optimizer.step()
    assert "stale-gradients" in [each.rule for each in watch.findings]


@pytest.mark.usefixtures("dear")
def test_a_warm_up_that_goes_on_in_a_rest_is_no_cliff() -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e-6 * 1.15**step)
    with watching() as watch:
        for _ in range(90):
            x = torch.randn(16, 4)
            optimizer.zero_grad()
            functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
            optimizer.step()
            schedule.step()
    assert "warm-up-cliff" not in [each.rule for each in watch.findings]


@pytest.mark.usefixtures("dear")
def test_a_rate_of_zero_from_the_beginning_counts_the_steps_of_rests() -> None:
    with watching() as watch:
        for _ in _train(_model(), 100, lr=0.0):
            pass
    found = next(each for each in watch.findings if each.rule == "learning-rate-zero")
    assert found.is_active
    assert found.evidence["steps"] > FIRST + REST


@pytest.mark.usefixtures("dear")
def test_rests_change_no_bit() -> None:
    def parameters() -> list[Tensor]:
        model = _model()
        for _ in _train(model, 150):
            pass
        return [each.detach() for each in model.parameters()]

    bare = parameters()
    with watching("extreme"):
        watched = parameters()
    assert all(map(torch.equal, bare, watched))
