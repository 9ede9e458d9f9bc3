"""`profile`, `memory` and `leaks` measure training steps where there is an optimizer."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layerstep
from layerstep.api import tell_unread
from layerstep.commands.profile_views import head
from layerstep.engine.session import Session
from layerstep.frontends.choose import open_session
from layerstep.memory.census import census_of
from layerstep.memory.meter import meter_of
from layerstep.memory.step import MeasuredStep
from layerstep.profile import machine
from layerstep.profile.report import Measured
from layerstep.profile.state import state_of
from layerstep.render.screen import to_text
from layerstep.views import Text
from play import Clock

WIDTH, BATCH = 8, 4
WEIGHTS = 4 * (WIDTH * WIDTH + WIDTH)
"""Bytes of the parameters of one layer."""


class Watched:
    """A program that ran under a session which finds its models by itself, and what was said."""

    def __init__(self, program: Callable[[], Any], *lines: str) -> None:
        output = io.StringIO()
        self.clock = Clock()
        with machine.replaced(self.clock, cores=4):
            self.session, _ = open_session(batch=True, output=output)
            self.session.attach(discover=True)
            try:
                for line in lines:
                    self.session.prompt.run_line(line)
                program()
                tell_unread(self.session)
                self.time = state_of(self.session).measured()
            finally:
                self.session.detach()
        self.said = output.getvalue()

    @property
    def memory(self) -> list[MeasuredStep]:
        return list(meter_of(self.session).steps)

    def calls(self, path: str) -> list[int]:
        row = self.time.row(path)
        assert row is not None, [row.path for row in self.time.rows]
        return row.calls


def layer() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def batch() -> Tensor:
    return torch.randn(BATCH, WIDTH)


def sgd(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: int = 1) -> None:
    for _ in range(micro_batches):
        model(batch()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def evaluate(model: nn.Module, times: int) -> None:
    with torch.no_grad():
        for _ in range(times):
            model(batch())


# --- what runs before the training ---


def evaluated_first() -> None:
    net = layer()
    optimizer = sgd(net)
    evaluate(net, 10)
    for _ in range(12):
        step(net, optimizer)


def test_an_evaluation_before_the_training_is_not_measured() -> None:
    found = Watched(evaluated_first, "profile 5", "memory 2", "leaks on")
    assert found.time.is_training and len(found.time.steps) == 5
    assert found.calls("net") == [1] * 5
    assert [each.label for each in found.memory] == ["step 1", "step 2"]
    assert all(each.saved.nodes for each in found.memory), "an evaluation saves nothing for a backward"
    assert census_of(found.session).unit == "step" and len(census_of(found.session).counts) >= 10
    assert "nothing piles up over 1" in found.said and "steps" in found.said


def test_an_optimizer_that_is_made_after_the_evaluation_is_waited_for_too() -> None:
    def program() -> None:
        net = layer()
        evaluate(net, 10)
        optimizer = sgd(net)
        for _ in range(12):
            step(net, optimizer)

    found = Watched(program, "profile 5")
    assert "5 forwards timed" in found.said, "it could not be known"
    assert "the training begins" in found.said and found.time.is_training
    assert len(found.time.steps) == 5 and found.calls("net") == [1] * 5


def test_a_transform_without_parameters_is_no_step() -> None:
    class Scale(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    def program() -> None:
        scale, net = Scale(), layer()
        optimizer = sgd(net)
        for _ in range(12):
            inputs = torch.stack([scale(row) for row in batch()])
            net(inputs).square().mean().backward()
            optimizer.step()

    found = Watched(program, "profile 5", "memory 2")
    assert found.time.is_training and len(found.time.steps) == 5
    assert found.calls("net") == [1] * 5 and found.calls("scale") == [BATCH] * 5
    assert len(found.memory) == 2 and all(each.label.startswith("step") for each in found.memory)
    assert found.memory[-1].batch == BATCH


def test_without_an_optimizer_it_is_the_main_model_whose_forwards_count() -> None:
    def program() -> None:
        small, large = nn.Linear(WIDTH, 2), nn.Sequential(layer(), layer())
        for _ in range(12):
            evaluate(small, 3)
            evaluate(large, 1)

    found = Watched(program, "profile 5 --report")
    assert not found.time.is_training and len(found.time.steps) == 5
    assert found.calls("large") == [1] * 5 and found.calls("small") == [3] * 5
    assert "5 forwards of large" in found.said


# --- steps of several forwards ---


def test_micro_batches_are_one_step() -> None:
    def program() -> None:
        net = layer()
        optimizer = sgd(net)
        for _ in range(12):
            step(net, optimizer, micro_batches=3)

    found = Watched(program, "profile 5", "memory 2")
    assert found.calls("net") == [3] * 5
    assert [each.forwards for each in found.memory] == [3, 3]
    assert all(each.kept["gradients"] == {"net": WEIGHTS} for each in found.memory)


def test_an_optimizer_around_another_is_not_waited_for() -> None:
    class Around(torch.optim.Optimizer):
        """As libraries wrap one: it has the same parameters, and never steps by itself."""

        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.param_groups, self.inner = inner.param_groups, inner

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.inner.step()

        def zero_grad(self, set_to_none: bool = True) -> None:
            self.inner.zero_grad()

    def program() -> None:
        net = layer()
        optimizer = Around(sgd(net))
        for _ in range(4):
            step(net, optimizer)

    assert [each.label for each in Watched(program, "memory 2").memory] == ["step 1", "step 2"]


def test_an_optimizer_that_takes_the_place_of_another_ends_steps_at_once() -> None:
    def program() -> None:
        net = layer()
        for _ in range(3):
            optimizer = sgd(net)
            for _ in range(4):
                step(net, optimizer)
            del optimizer

    found = Watched(program, "profile on", "memory on")
    assert len(found.memory) == 12 and len(found.time.steps) == 10
    assert found.calls("net") == [1] * 10


def adversarial(generator: nn.Module, judge: nn.Module, steps: int) -> None:
    of_judge, of_generator = sgd(judge), sgd(generator)
    for _ in range(steps):
        made = generator(batch())
        (judge(batch()).mean() - judge(made.detach()).mean()).backward()
        of_judge.step()
        of_judge.zero_grad()
        judge(made).mean().backward()
        of_generator.step()
        of_generator.zero_grad()


def test_two_optimizers_that_take_turns_make_one_step() -> None:
    def program() -> None:
        generator, judge = layer(), layer()
        adversarial(generator, judge, 12)

    found = Watched(program, "profile 4", "memory 2")
    assert found.calls("generator") == [1] * 4 and found.calls("judge") == [3] * 4
    assert {row.path for row in found.time.rows if not row.is_outside} == {"generator", "judge"}
    for each in found.memory:
        assert each.forwards == 4
        assert each.kept["parameters"] == {"generator": WEIGHTS, "judge": WEIGHTS}


def test_a_rollout_without_gradients_is_no_part_of_a_training_step() -> None:
    def program() -> None:
        policy = layer()
        optimizer = sgd(policy)
        for _ in range(12):
            evaluate(policy, 50)
            step(policy, optimizer)

    found = Watched(program, "profile 5 --report", "memory 2")
    assert found.calls("policy") == [1] * 5
    assert "250 forwards without gradients between them" in found.said
    assert [each.forwards for each in found.memory] == [1, 1]
    assert max(found.time.steps) < 0.01, "fifty forwards by this clock take longer"


def test_an_evaluation_with_gradients_that_no_backward_uses_is_no_part_either() -> None:
    def program() -> None:
        net = layer()
        optimizer = sgd(net)
        for _ in range(12):
            step(net, optimizer)
            net.eval()
            for _ in range(7):
                net(batch())
            net.train()

    found = Watched(program, "profile 5")
    assert found.calls("net") == [1] * 5
    assert sum(each.asides for each in found.time.times) == 5 * 7


def test_a_teacher_that_is_not_trained_is_a_part_of_the_step() -> None:
    def program() -> None:
        teacher, student = layer(), nn.Sequential(layer(), layer())
        optimizer = sgd(student)
        for _ in range(12):
            inputs = batch()
            with torch.no_grad():
                wanted = teacher(inputs)
            (student(inputs) - wanted).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    found = Watched(program, "profile 5")
    assert found.calls("teacher") == [1] * 5 and found.calls("student") == [1] * 5


def test_what_a_model_saved_counts_once_where_another_goes_on_with_its_output() -> None:
    def program() -> None:
        first, second = nn.Sequential(layer(), nn.Tanh(), layer()), nn.Sequential(layer(), nn.Tanh(), layer())
        optimizer = sgd(first, second)
        for _ in range(5):
            second(first(batch())).sum().backward()
            optimizer.step()

    found = Watched(program, "profile 2").time
    saved = {row.path: row.saved for row in found.rows if row.saved}
    assert saved == {"first.1": 4 * BATCH * WIDTH, "second.1": 4 * BATCH * WIDTH}


@pytest.mark.parametrize(
    ("lines", "also"),
    [
        (["profile 2"], None),
        (["profile 2", "memory 2"], "memory; its work is in these times"),  # over after the first of the two
        (["leaks on", "memory on", "profile 2"], "leaks, memory; their work is in these times"),
        (["memory 1", "profile 2"], None),  # over before they begin
    ],
)
def test_what_else_was_on_is_told_with_the_times(lines: list[str], also: str | None) -> None:
    def program() -> None:
        net = layer()
        optimizer = sgd(net)
        for _ in range(6):
            step(net, optimizer)

    found = Watched(program, *lines)
    shown = dict(head(found.time).items).get("also on")
    assert (shown.text if isinstance(shown, Text) else shown) == also


def test_a_closure_that_is_called_again_and_again_is_one_step() -> None:
    def program() -> None:
        net, inputs = layer(), batch()
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3, tolerance_grad=0, tolerance_change=0)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (net(inputs) - inputs.sin()).square().mean()
            loss.backward()
            return loss  # type: ignore[no-any-return]

        for _ in range(8):
            optimizer.step(closure)  # type: ignore[arg-type]

    found = Watched(program, "profile 3", "memory 2")
    assert found.calls("net") == [3] * 3
    assert [each.forwards for each in found.memory] == [3, 3]


# --- too short, and gone ---


@pytest.mark.parametrize(
    ("line", "steps", "says"),
    [
        ("profile 20", 6, "the run ended after 4 of 20 training steps"),
        ("profile 5", 2, "nothing was timed: the run ended after 2 training steps"),
        ("profile 5", 0, "nothing was timed: no model was called"),
        ("memory 20", 6, "the run ended after 6 of 20 training steps"),
        ("memory 2", 0, "nothing is measured"),
        ("leaks on", 3, "too few steps to tell: 3 of at least 6"),
    ],
)
def test_a_run_that_is_too_short_says_so(line: str, steps: int, says: str) -> None:
    def program() -> None:
        net = layer()
        optimizer = sgd(net)
        for _ in range(steps):
            step(net, optimizer)

    assert says in re.sub(r"\s+", " ", Watched(program, line).said)


def test_an_optimizer_that_never_steps_leaves_the_forwards() -> None:
    def program() -> None:
        net = layer()
        optimizer = sgd(net)
        evaluate(net, 20)
        del optimizer

    found = Watched(program, "profile 5", "memory 2")
    assert "no optimizer has stepped, so 5 forwards are timed" in found.said
    assert "no optimizer has stepped, so 2 forwards are measured" in found.said
    assert len(found.time.steps) == 5 and [each.label for each in found.memory] == ["forward 1", "forward 2"]


def test_a_model_that_is_gone_at_the_end_is_still_reported() -> None:
    found = Watched(evaluated_first, "memory 2", "profile 3")
    assert not list(found.session.run.models)
    assert "no model has run yet" not in found.said
    assert found.memory[-1].kept["parameters"] == {"net": WEIGHTS}
    assert re.search(r"^net +288 B +288 B", found.said, re.MULTILINE), found.said
    assert re.search(r"^net +\d", found.said, re.MULTILINE)


# --- what adds up ---


def deep() -> nn.Sequential:
    return nn.Sequential(layer(), nn.Sequential(layer(), nn.Tanh()), layer())


def shown_sum(text: str) -> tuple[float, float, float]:
    """Of a report: the step, and the sums of the own times and of the shares."""
    lines = text.splitlines()
    whole = next(float(found[1]) for line in lines if (found := re.match(r" +typical +([\d.]+) ms", line)))
    head = next(at for at, line in enumerate(lines) if "own ms" in line)
    at_own, at_share = (lines[head].index(word) + len(word) for word in ("own ms", " %"))
    rows = lines[head + 1 : next(at for at, line in enumerate(lines) if line.startswith("own:"))]
    own = [float(row[:at_own].split()[-1]) for row in rows]
    share = [float(row[:at_share].split()[-1]) for row in rows]
    assert own == sorted(own, reverse=True), "the rows are in the order of what is shown"
    return whole, sum(own), sum(share)


@pytest.mark.parametrize("program", ["trained", "adversarial", "rolled out", "used"])
def test_the_rows_that_are_shown_add_up_to_the_step(program: str) -> None:
    def run() -> None:
        net = deep()
        if program == "used":
            evaluate(net, 12)
        elif program == "adversarial":
            judge = deep()
            adversarial(net, judge, 12)
        else:
            optimizer = sgd(net)
            for number in range(12):
                evaluate(net, number if program == "rolled out" else 0)
                step(net, optimizer, micro_batches=1 + number % 3)

    found = Watched(run, "profile 5")
    whole, own, share = shown_sum(to_text(_report(found.session)))
    assert own == pytest.approx(whole, rel=0.01) and share == pytest.approx(100, abs=0.6)
    _adds_up(found.time)


def _adds_up(found: Measured) -> None:
    for number, each in enumerate(found.times):
        parts = sum(row.own[number] for row in found.rows)
        assert parts == pytest.approx(found.steps[number])
        assert parts + (each.tool + each.aside) / 1e9 == pytest.approx((each.end - each.begin) / 1e9)
    assert sum(found.typical(row.own) for row in found.rows) == pytest.approx(found.seconds)
    roots = [row for row in found.rows if not row.parent]
    assert sum(found.typical(row.total) for row in roots) == pytest.approx(found.seconds)


def _report(session: Session) -> Any:
    from layerstep.commands import profile_views

    return profile_views.report(state_of(session), by="module", sort="own")


# --- by whom, and by what name ---


def test_the_state_of_a_tied_weight_is_where_its_bytes_are() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(10, WIDTH)
            self.head = nn.Linear(WIDTH, 10, bias=False)
            self.head.weight = self.words.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.words(x))

    def program() -> None:
        net = Tied()
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(3):
            net(torch.arange(10)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    kept = Watched(program, "memory 2").memory[-1].kept
    size = 4 * 10 * WIDTH
    assert kept["parameters"] == {"words": size} and kept["gradients"] == {"words": size}
    assert kept["optimizer state"] == {"words": 2 * size + 4}, "two moments and a count"


def test_names_are_the_same_in_every_step_and_in_every_run() -> None:
    def program() -> None:
        generator, judge = layer(), layer()
        adversarial(generator, judge, 8)

    runs = [Watched(program, "profile 3", "memory on") for _ in range(2)]
    for found in runs:
        assert {row.path for row in found.time.rows if not row.is_outside} == {"generator", "judge"}
        for each in found.memory:
            paths = {*each.kept["parameters"], *each.saved.by_path, *each.highest.temporary}
            assert paths <= {"generator", "judge", ""}, each.label


def test_a_model_that_is_made_again_has_one_row() -> None:
    def program() -> None:
        for _ in range(3):
            net = nn.Sequential(layer(), nn.ReLU())
            optimizer = sgd(net)
            for _ in range(6):
                step(net, optimizer)
            del net, optimizer

    found = Watched(program, "profile on")
    paths = [row.path for row in found.time.rows]
    assert len(paths) == len(set(paths)) and {"net", "0", "1"} <= set(paths), paths


def test_tensors_of_the_debugger_are_no_tensors_of_the_program() -> None:
    found = Watched(evaluated_first, "memory 2")
    assert "other tensors" not in found.said or "5.1 kB" not in found.said, found.said


# --- bounded ---


def test_many_small_calls_in_one_step_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from layerstep.memory import ledger
    from layerstep.profile import timing

    monkeypatch.setattr(timing, "MOST_MARKS", 400)
    monkeypatch.setattr(ledger, "EVENTS", 300)
    longest = 0

    def program() -> None:
        nonlocal longest
        net = layer()
        optimizer = sgd(net)
        for number in range(10):
            evaluate(net, 300)
            for _ in range(300 if number == 7 else 1):
                net(batch()).mean().backward()
            profile, meter = state_of(session).profile, meter_of(session)
            longest = max(
                longest, len(profile.clock.log), len(meter._ledger.pieces), len(meter._ledger._events)
            )
            optimizer.step()
            optimizer.zero_grad()

    session, _ = open_session(batch=True, output=io.StringIO())
    session.attach(discover=True)
    try:
        for line in ("profile on", "memory on"):
            session.prompt.run_line(line)
        program()
        found = state_of(session).measured()
    finally:
        session.detach()
    assert longest < 500
    assert found.too_long == 1 and len(found.steps) == 7
    assert "1 with too many calls are left out" in to_text(_report(session))


def test_the_library_measures_training_steps_too() -> None:
    net = layer()
    optimizer = sgd(net)
    profiler, memory = layerstep.Profiler(net), layerstep.MemoryProfiler(net)
    for each in (profiler, memory):
        each.start()
        evaluate(net, 6)
        for _ in range(5):
            step(net, optimizer, micro_batches=2)
        each.stop()
    report = profiler.report()
    assert report.unit == "training step" and report.steps == 4
    assert report.layer("Linear").calls == 8
    assert sum(each.own for each in report.layers) == pytest.approx(report.step_seconds)
    steps = memory.report().steps
    assert [each.label for each in steps] == ["step 2", "step 3", "step 4", "step 5"]
    assert steps[-1].kept["parameters"] == {"Linear": WEIGHTS}
