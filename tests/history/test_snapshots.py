"""`snapshot` and `restore`: the state of a training goes back, the program does not."""

from __future__ import annotations

import gc
import io
import random

import numpy as np
import torch
from torch import nn

from layerstep import DebugConsole


class Training:
    """A small training with all that has a state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.5)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.batches: list[float] = []
        self.rates: list[float] = []

    def step(self) -> None:
        batch = torch.randn(6, 4) + random.random() + np.random.rand()
        self.batches.append(float(batch.sum()))
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        loss = self.net(batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors themselves, of the model and of the optimizer."""
        found = dict(self.net.state_dict(keep_vars=True))
        for number, state in enumerate(self.optimizer.state.values()):
            found |= {f"{number}.{name}": each for name, each in state.items()}
        return found


def copied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in tensors.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def played(training: Training, lines: list[str], steps: int) -> str:
    """What the screen shows while the training goes through its steps."""
    out = io.StringIO()
    with DebugConsole(training.net, commands=["tbreak 0 enter", "continue", *lines], output=out):
        for _ in range(steps):
            training.step()
    return " ".join(out.getvalue().split())


def test_the_state_is_back_and_the_script_goes_on_with_its_next_batch() -> None:
    training = Training()
    for _ in range(2):
        training.step()
    before, kept = training.tensors(), copied(training.tensors())
    lines = ["snapshot", "until step 2", "restore 1", "continue"]
    screen = played(training, lines, 3)
    assert same(copied(training.tensors()), kept)
    after = training.tensors()
    assert all(after[name] is tensor for name, tensor in before.items()), "the tensors are the same objects"
    assert training.rates == [0.5, 0.25, 0.125, 0.0625, 0.03125]
    assert training.optimizer.param_groups[0]["lr"] == 0.0625, "restored after step 5, and then stepped"
    assert len(set(training.batches)) == 5
    assert "the state after 0 training steps" in screen
    assert "snapshot 1 is restored at the end of this training step" in screen
    assert "✓ snapshot 1 is restored: the state after 0 training steps; the script goes on" in screen


def test_perturbed_lists_it_when_it_is_done() -> None:
    lines = ["snapshot", "restore 1", "perturbed?", "until step 1", "perturbed?"]
    asked = played(Training(), lines, 2).split("(layerstep) perturbed?")
    assert "✓ no: random streams" in asked[1]
    assert "! yes: 4 changes" in asked[2] and "restore 1 weights and buffers" in asked[2]


def test_random_streams_go_back_with_it() -> None:
    """The snapshot is taken in a forward, when its batch is drawn: what is drawn next is drawn again."""
    training = Training()
    played(training, ["snapshot", "until step 2", "restore 1", "continue"], 3)
    after_restore = (torch.rand(1).item(), random.random(), np.random.rand())
    training = Training()
    torch.randn(6, 4), random.random(), np.random.rand()
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == after_restore


def test_an_optimizer_that_had_not_stepped_has_no_state_again() -> None:
    training = Training()
    kept = copied(training.tensors())
    played(training, ["snapshot first", "until step 2", "restore first", "continue"], 3)
    assert same(copied(training.tensors()), kept) and not training.optimizer.state


def test_a_graph_of_the_other_optimizer_is_not_broken() -> None:
    """A generator's graph is built before the discriminator steps, and used after it."""
    torch.manual_seed(0)
    made, judge = nn.Linear(3, 4), nn.Linear(4, 1)
    of_judge = torch.optim.SGD(judge.parameters(), lr=0.1)
    of_made = torch.optim.SGD(made.parameters(), lr=0.1)
    out = io.StringIO()
    lines = ["break 0 enter", "continue", "snapshot", "continue", "continue", "restore 1", "continue"]
    both = nn.Sequential(made, judge)
    kept = copied(dict(both.state_dict()))
    with DebugConsole(both, commands=lines, output=out):
        for _ in range(3):
            fake = made(torch.ones(2, 3))
            judge(fake.detach()).mean().backward()
            of_judge.step()
            of_judge.zero_grad()
            (-judge(fake).mean()).backward()
            of_made.step()
            of_made.zero_grad()
    assert "is restored: the state after 0" in " ".join(out.getvalue().split())
    assert same(copied(dict(both.state_dict())), kept)


def test_without_an_optimizer_it_is_restored_at_once() -> None:
    gc.collect()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    lines = ["break 0 enter", "continue", "snapshot", "continue", "restore 1", "delete", "continue"]
    with torch.no_grad(), DebugConsole(net, commands=lines, output=io.StringIO()):
        first, second = (net(torch.ones(8, 4)) for _ in range(2))
    assert torch.equal(first, second), "the same dropout, from the same stream"
    assert int(net[1].num_batches_tracked) == 1


def test_a_snapshot_has_a_budget() -> None:
    gc.collect()  # optimizers of other tests
    training = Training()
    training.step()
    lines = ["config snapshot_bytes 1500", "snapshot a", "snapshot b", "snapshot a", "restore", "restore z"]
    screen = played(training, lines, 1)
    assert "✓ snapshot a: the state after 0 training steps, 984 B" in screen
    assert "✗ a snapshot takes 984 B, and 516 B are free" in screen and "`config snapshot_bytes N`" in screen
    assert screen.count("✓ snapshot a") == 2, "one of the same name takes its place"
    assert "✗ there is no snapshot 'z'; there are: a" in screen
