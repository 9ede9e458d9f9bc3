"""`profile` on runs that are not one model in one loop: compiled, two models, threads, errors, closures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import layerstep
import quick_python
from layerstep.profile.report import Measured
from layerstep.profile.state import ProfileState, state_of
from layerstep.profile.timed_modules import timeable_modules
from layerstep.render.screen import to_text
from layerstep.training_steps.borders import Cycle
from play import Clock, timed_by
from zoo import console_on, taps_on

WAIT = 0.01


class Slow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(WAIT)
        return x * 2


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def train(model: Callable[[Tensor], Tensor], parameters: Any, steps: int) -> None:
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    for _ in range(steps):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def profiled(
    run: Callable[[], None], *models: nn.Module, lines: tuple[str, ...] = ("profile on",)
) -> ProfileState:
    console, seen = console_on(models[0], [])
    with console:
        for model in models[1:]:
            console.session.add_model(model)
        for line in lines:
            console.execute(line)
        run()
        console.execute("profile off")
        assert "bug" not in seen.text, seen.text
        return state_of(console.session)


def paths(found: Measured) -> set[str]:
    return {row.path for row in found.rows if not row.is_outside}


# --- compiled ---


@pytest.mark.filterwarnings("ignore")  # torch.compile has some of its own
def test_a_compiled_model_is_timed_as_a_whole_and_stays_compiled() -> None:
    for is_wrapped in (True, False):
        torch._dynamo.reset()
        model = nn.Sequential(Slow(), nn.Linear(4, 2))
        graphs: list[Any] = []

        def keep(graph: Any, inputs: Any, graphs: list[Any] = graphs) -> Any:
            graphs.append(graph)
            return graph

        called: Any = model
        if is_wrapped:
            called = torch.compile(model, backend=keep)
        else:
            model.compile(backend=keep)
        state = profiled(lambda c=called, m=model: train(c, m.parameters(), 5), called)  # type: ignore[misc]
        found = state.measured()
        (path,) = paths(found)
        row = found.row(path)
        assert row is not None and row.kind == "Sequential" and row.parameters == 10
        assert min(row.forward) > 0 and min(row.backward) > 0
        assert "compiled" in state.looked.trouble and graphs
        assert model.__dict__.get("_compiled_call_impl") is None or not is_wrapped
        assert "layerstep" not in type(model.__dict__.get("_compiled_call_impl")).__module__, "put back"


@pytest.mark.filterwarnings("ignore")
def test_around_a_compiled_part_the_rest_is_timed() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.part = torch.compile(small(), backend="eager")

        def forward(self, x: Tensor) -> Tensor:
            return self.part(self.first(x))  # type: ignore[no-any-return]

    model = Net()
    state = profiled(lambda: train(model, model.parameters(), 5), model)
    assert paths(state.measured()) == {"Net", "first", "part"}
    assert state.profile.untimed == ["part"]


def test_a_step_whose_model_is_in_a_compiled_function_is_not_called_data() -> None:
    model = small()
    inside = torch.compile(lambda x: model(x), backend="eager")
    inside(torch.ones(3, 4))
    state = profiled(lambda: train(inside, model.parameters(), 5), nn.Linear(4, 2))
    assert {row.path for row in state.measured().rows if row.is_outside} >= {"unseen", "optimizer"}
    assert "data" not in {row.path for row in state.measured().rows}
    assert "waiting-for-data" not in {advice.name for advice in state.advice()}


def test_nothing_is_put_into_a_module_that_is_replicated() -> None:
    model = nn.DataParallel(small())
    model.device_ids = [0, 1]  # as on a machine with two devices
    console, _ = console_on(model, [])
    with console:
        (known,) = console.session.run.models
        (place,) = timeable_modules(console.session.run.models, known, outermost=False)
        assert place.module is model and place.is_whole
        console.execute("profile on")
        assert not any("forward" in part.__dict__ for part in model.module.modules())


# --- errors ---


def test_a_step_in_which_the_forward_or_the_backward_raised_does_not_count() -> None:
    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            y = self.linear(x)
            if self.calls == 4:
                raise ValueError("in the forward")
            if self.calls == 7:
                y.register_hook(_raise)
            return y.relu()

    model = Raises()

    def run() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(10):
            try:
                model(torch.ones(3, 4)).sum().backward()
            except ValueError:
                continue
            optimizer.step()

    state = profiled(run, model)
    found = state.measured()
    assert state.profile.left_out == 2 and len(found.steps) == 10 - 2 - 2 - 2
    row = found.row("linear")
    assert row is not None and row.calls == [1] * 4
    assert "2 with a stop or an error in them" in to_text(_report(state))


def _raise(gradient: Tensor) -> None:
    raise ValueError("in the backward")


def _report(state: ProfileState) -> Any:
    from layerstep.commands import profile_views

    return profile_views.report(state, by="module", sort="own")


# --- optimizers ---


def test_a_subclass_that_calls_its_parents_step_makes_one_step() -> None:
    class Twice(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()

    model = nn.Linear(4, 2)
    optimizer = Twice(model.parameters(), lr=0.01)
    console, _ = console_on(model, [])
    with console:
        training = console.session.run.training
        seen: list[str] = []
        training.before.append(lambda stepped: seen.append("before"))
        training.after.append(lambda stepped: seen.append("after"))
        for _ in range(3):
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        assert training.count == 3 and seen == ["before", "after"] * 3


def test_a_step_that_raises_does_not_hide_those_after_it() -> None:
    class Fails(torch.optim.SGD):
        fails = False

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            if self.fails:
                raise RuntimeError("no")

    model = nn.Linear(4, 2)
    optimizer = Fails(model.parameters(), lr=0.01)
    console, _ = console_on(model, [])
    with console:
        for fails in (False, True, False, False):
            optimizer.fails = fails
            try:
                optimizer.step()
            except RuntimeError:
                assert fails
        assert console.session.run.training.count == 3


def test_a_closure_runs_inside_of_the_optimizers_step() -> None:
    model, x = nn.Linear(4, 1), torch.randn(6, 4)

    def run() -> None:
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            time.sleep(WAIT)
            return loss  # type: ignore[no-any-return]

        for _ in range(5):
            optimizer.step(closure)

    found = profiled(run, model).measured()
    optimizer, after = found.row("optimizer"), found.row("after backward")
    assert optimizer is not None and min(optimizer.own) > 0.9 * WAIT
    assert after is not None and max(after.own) == 0


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        ([1, 1, 1], [1, 1, 1]),
        ([1, 2, 1, 2, 1, 2], [1, 0, 0, 1, 0, 1]),
        ([1, 1, 2, 1, 1, 2, 1, 1, 2], [1, 1, 0, 0, 0, 1, 0, 0, 1]),
        ([2, 2], [1, 1]),
    ],
)
def test_a_training_step_ends_with_the_last_optimizer_of_a_cycle(steps: list[int], ends: list[int]) -> None:
    cycle = Cycle()
    assert [int(cycle.ends_with(number)) for number in steps] == ends


def test_an_optimizer_that_stays_away_holds_up_nothing() -> None:
    cycle = Cycle()
    found = [cycle.ends_with(number) for number in [1, 2, 1, 2, *[1] * 40]]
    assert sum(found[-20:]) >= 15


# --- several models, several threads ---


def test_two_models_have_their_paths_flops_and_both_ways() -> None:
    generator, judge = small(), nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))

    def run() -> None:
        first = torch.optim.SGD(judge.parameters(), lr=0.01)
        second = torch.optim.SGD(generator.parameters(), lr=0.01)
        for _ in range(6):
            made = generator(torch.ones(3, 4))
            judge(made.detach()).mean().backward()
            first.step()
            judge(made).mean().backward()
            second.step()

    state = profiled(run, generator, judge)
    found = state.measured()
    assert {path.partition(".")[0] for path in paths(found)} == {"Sequential", "Sequential2"}
    for name, calls in (("Sequential.0", 1), ("Sequential2.0", 2)):
        row = found.row(name)
        assert row is not None and set(row.calls) == {calls} and min(row.backward) > 0, name
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        judge(generator(torch.ones(3, 4)))
    assert sum(row.own_flops for row in found.rows) == counter.get_total_flops()
    twice = found.row("Sequential2.0")
    assert twice is not None and twice.work == 2 * twice.own_flops


def test_calls_of_another_thread_meanwhile_are_not_mixed_in() -> None:
    lets_others_run = time.sleep

    class OwnTime(threading.local, Clock):
        """Each thread has a clock of its own: no load disturbs it."""

    class Overlapping(Slow):
        def forward(self, x: Tensor) -> Tensor:
            lets_others_run(0.001)
            return super().forward(x)

    model = nn.Sequential(Overlapping(), nn.Linear(4, 2))

    def work() -> None:
        with torch.no_grad():
            for _ in range(6):
                model(torch.ones(3, 4))

    def run() -> None:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with timed_by(OwnTime(tick=1_000)):
        found = profiled(run, model, lines=("profile 3",)).measured()
    row = found.row("0")
    assert len(found.steps) == 3 and row is not None
    assert row.calls == [1] * 3 and WAIT <= min(row.forward) <= max(row.forward) < 2 * WAIT


def test_a_profile_that_begins_anew_inside_of_a_call_goes_on() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    lines = ["profile on", "until forward 3", "break 1", "continue", "profile 2", "delete 1", "continue"]
    console, seen = console_on(model, lines)
    with console:
        train(model, model.parameters(), 9)
        state = state_of(console.session)
        assert len(state.profile.steps) == 2 and not state.profile.is_on, seen.text
        assert not taps_on(model)


# --- without gradients ---


def test_a_report_under_inference_mode_answers() -> None:
    model = small()
    console, seen = console_on(model, ["profile 2 --report --advice", "continue"])
    with console, torch.inference_mode():
        for _ in range(6):
            model(torch.ones(3, 4))
    assert "2 forwards timed" in seen.text and "own ms" in seen.text
    assert "bug" not in seen.text and "detached" not in seen.text, seen.text


def test_a_model_that_was_trained_and_is_used_now_has_forwards() -> None:
    model = small()

    def run() -> None:
        train(model, model.parameters(), 2)
        console.execute("profile 2")
        with torch.no_grad():
            for _ in range(6):
                model(torch.ones(3, 4))

    console, _ = console_on(model, [])
    with console:
        run()
        found = state_of(console.session).measured()
    assert not found.is_training and len(found.steps) == 2


# --- memory ---


def test_memory_by_module_is_what_autograd_keeps_and_what_a_call_needs() -> None:
    class Wide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            wide = x.repeat(1, 100)
            return wide[:, :4].exp() + wide[:, 4:8]

    model = nn.Sequential(nn.Linear(4, 4), Wide(), nn.Tanh())
    state = profiled(lambda: train(model, model.parameters(), 5), model)
    rows = {row.path: row for row in state.measured().rows}
    small_one = 3 * 4 * 4
    assert rows["0"].saved == 0, "its input is the batch, which is there anyway"
    assert rows["1"].saved == small_one, "exp keeps its result"
    assert rows["2"].saved == small_one and rows["2"].needed == small_one
    assert rows["1"].needed == 100 * small_one + 2 * small_one, "the wide one, exp of a part, and the sum"
    assert rows["Sequential"].needed >= rows["1"].needed
    text = to_text(_report(state))
    assert "saved" in text and "keeps for the backward" in text


def test_memory_is_in_the_report_of_the_library() -> None:
    model = small()
    with layerstep.profiling(model) as profiler:
        train(model, model.parameters(), 4)
    report = profiler.report()
    assert report.layer("1").saved_bytes == 3 * 8 * 4 == report.layer("1").peak_bytes


# --- kernels ---

SCRIPT = """
import torch
model = torch.nn.Linear(4, 4)
for _ in range(5):
    model(torch.ones(2, 4))
"""


def test_torchs_profiler_writes_no_lines_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(SCRIPT)
    command = ["-m", "layerstep", "run", "--batch", "-e", "profile ops 2", "-e", "continue", str(script)]
    done = quick_python.run(command, check=True)
    assert "2 forwards timed" in done.stderr
    assert "profiler_start" not in done.stderr and "profiler_start" not in done.stdout
