"""What the doctor costs at its three levels: whole runs of training steps, not the fastest step.

A look comes only in some steps, so the fastest step would hide it.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.doctor_memory import MOST_MB, STEPS, Growth, doctor_memory
from benchmarks.measure import Spread
from benchmarks.models import all_cases
from benchmarks.report import Goals, with_range
from benchmarks.tables import table
from benchmarks.variants import attached, new_session, say
from layerstep.doctor.budget import Level
from layerstep.doctor.watching import doctor_of

__all__ = ["doctor_section", "measure_doctor"]

HEADING = "## The doctor"
BATCHES = 16
BARE, AGAIN, OFF = "bare", "bare, again (noise)", "attached, doctor off"
BY_HAND = "a hook with `.item()` on each parameter"
MOST_OFF = 1.01


@dataclass(frozen=True, slots=True)
class Training:
    """A training that is run again and again from the same parameters."""

    name: str
    model: nn.Module
    batches: list[tuple[Tensor, Tensor]]
    loss: Callable[[object, Tensor], Tensor]
    steps: int
    beginning: int
    """Steps that are left out in the second column."""
    rounds: int

    def run(self) -> list[tuple[float, float]]:
        """The wall and CPU time at the end of each step, from the first on."""
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        times = [(time.perf_counter(), time.thread_time())]
        for step in range(self.steps):
            given, target = self.batches[step % BATCHES]
            loss = self.loss(self.model(given), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            times.append((time.perf_counter(), time.thread_time()))
        return times


@dataclass(slots=True)
class Costs:
    """What was found of one training: for each variant, the times of its steps in each round."""

    training: Training
    times: dict[str, list[list[tuple[float, float]]]] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    """What `info cost` said at the end of the last round."""

    def ratio(self, variant: str, *, since: int = 0, clock: int = 1) -> Spread:
        """The time of all steps since one, divided by that of the bare run of the same round."""
        pairs = zip(self.times[variant], self.times[BARE], strict=True)
        return Spread.of(_span(own, since, clock) / _span(bare, since, clock) for own, bare in pairs)

    @property
    def step(self) -> float:
        """Milliseconds of a bare step."""
        return Spread.of(_span(each, 0, 1) * 1e3 / self.training.steps for each in self.times[BARE]).median


def _span(times: list[tuple[float, float]], since: int, clock: int) -> float:
    return times[-1][clock] - times[since][clock]


def trainings(*, quick: bool) -> list[Training]:
    """The two real models, and a network whose step takes about a millisecond."""
    gpt, resnet, _ = all_cases()
    torch.manual_seed(0)
    small = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    tokens = [torch.randint(1000, (8, 64)) for _ in range(BATCHES)]
    images = [(torch.randn(8, 3, 64, 64), torch.randint(1000, (8,))) for _ in range(BATCHES)]
    rows = [(torch.randn(128, 32), torch.randint(10, (128,))) for _ in range(BATCHES)]
    steps, rounds = (100, 1) if quick else (150, 3)
    many = 3000 if quick else 6000
    return [
        Training(f"{gpt.name}, batch 8", gpt.model, [(t, t) for t in tokens], _next_token, steps, 50, rounds),
        Training(f"{resnet.name}, batch 8", resnet.model, images, _classes, steps, 50, rounds),
        Training("an MLP, 32-256-256-10, batch 128", small, rows, _classes, many, 1000, rounds + 2),
    ]


def _next_token(output: object, tokens: Tensor) -> Tensor:
    logits: Tensor = output.logits  # type: ignore[attr-defined]
    return functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def _classes(output: object, target: Tensor) -> Tensor:
    assert isinstance(output, Tensor)
    return functional.cross_entropy(output, target)


@contextlib.contextmanager
def _attached(training: Training, told: Callable[[str], None], *, line: str) -> Iterator[None]:
    session = new_session()
    session.add_model(training.model)
    with attached(session, discover=False):
        if line:
            say(session, line)
        yield
        told("".join(doctor_of(session).cost()))


@contextlib.contextmanager
def _norms_by_hand(training: Training, told: Callable[[str], None]) -> Iterator[None]:
    """The norm of each gradient in each step, as watching tools take it."""
    norms: dict[str, float] = {}

    def watch(name: str, gradient: Tensor) -> None:
        norms[name] = gradient.norm().item()

    with contextlib.ExitStack() as handles:
        for name, parameter in training.model.named_parameters():
            handles.callback(parameter.register_hook(partial(watch, name)).remove)
        yield


@contextlib.contextmanager
def _bare(training: Training, told: Callable[[str], None]) -> Iterator[None]:
    yield


VARIANTS: dict[str, Callable[..., contextlib.AbstractContextManager[None]]] = {
    BARE: _bare,
    AGAIN: _bare,
    OFF: partial(_attached, line=""),
    **{f"level {level}": partial(_attached, line=f"doctor on {level}") for level in Level},
    BY_HAND: _norms_by_hand,
}


def measure_doctor(*, quick: bool) -> list[Costs]:
    """Each round runs every variant once, from the same parameters, in a new order."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    order, found = random.Random(0), []
    gc.enable()  # as in a program: what the doctor makes must be collected, too
    for training in trainings(quick=quick):
        first = copy.deepcopy(training.model.state_dict())
        costs = Costs(training)
        training.model.train()
        for _ in range(training.rounds):
            names = list(VARIANTS)
            order.shuffle(names)
            for name in names:
                training.model.load_state_dict(first)
                gc.collect()
                with torch.enable_grad(), VARIANTS[name](training, partial(costs.told.__setitem__, name)):
                    costs.times.setdefault(name, []).append(training.run())
        found.append(costs)
    return found


def _cost_table(costs: Costs) -> str:
    rows = []
    for name in VARIANTS:
        whole, later = costs.ratio(name), costs.ratio(name, since=costs.training.beginning)
        wall = costs.ratio(name, since=costs.training.beginning, clock=0)
        rows.append((name, *(with_range(each, 3) for each in (whole, later, wall))))
    training = costs.training
    head = ("CPU, × bare", f"after {training.beginning} steps", "wall time, after them")
    return table((f"{training.steps:,} steps", *head), rows)


def _memory_table(found: Sequence[Growth]) -> str:
    rows = [(each.run, f"{each.settled:.0f}", f"{each.grown:+.1f}", f"{each.watched:,}") for each in found]
    return table((f"{STEPS:,} steps", "MB after 1,000", "MB more at the end", "steps watched"), rows)


def _goals(found: Sequence[Costs], growths: Sequence[Growth]) -> str:
    goals = Goals()
    for costs in found:
        name, since = costs.training.name, costs.training.beginning
        goals.add(f"{OFF}, {name}", MOST_OFF, costs.ratio(OFF, since=since), "{:.3f} × bare")
        for level in Level:
            ratio = costs.ratio(f"level {level}", since=since)
            goals.add(f"level {level}, {name}", 1 + level.share, ratio, "{:.3f} × bare")
    bare = growths[0].grown
    for each in growths[1:]:
        more = Spread.of([each.grown - bare])
        goals.add(f"{STEPS:,} steps, {each.run}, more than bare", MOST_MB, more, "{:.1f} MB")
    return goals.table()


def doctor_section(*, quick: bool) -> str:
    """Measure, and write the section of the page."""
    begin = os.getloadavg()[0]
    found, growths = measure_doctor(quick=quick), doctor_memory()
    parts = [HEADING, _WORDS]
    for costs in found:
        told = "\n".join(f"- {line}" for line in costs.told.values() if line)
        title = f"### {costs.training.name}: {costs.step:.2f} ms bare"
        parts += [title, _cost_table(costs), f"What `info cost` said at the end:\n\n{told}"]
    parts += ["### Memory", _MEMORY_WORDS, _memory_table(growths), "### What is aimed at"]
    rounds = ", ".join(str(costs.training.rounds) for costs in found)
    load = f"The load average of the machine was {begin:.1f} to {os.getloadavg()[0]:.1f}."
    return "\n\n".join([*parts, _goals(found, growths), f"Rounds: {rounds}. {load}"])


_WORDS = """\
Whole runs of training steps with AdamW, on one thread, with the garbage collector on. Each round runs every
variant once from the same parameters, in a new order; the tables show the median, over the rounds, of the
ratio to the bare run of the same round, and in brackets the range of the middle half. The doctor looks at the
first ten steps whatever that costs, and then as often as its level allows. So the first column, which has the
beginning in it, falls towards the second as a run gets longer. A step of the MLP is so short that even
watching costs more than the level: after 500 steps the doctor watches 20 steps in a row and rests in between.
`python -m benchmarks.sections --doctor --write` measures this part alone."""
_MEMORY_WORDS = """\
Training of a small classifier on fresh batches, each run in a process of its own. The size of the process is
taken after 1,000 steps, when all that is kept once is there, and at the end."""
