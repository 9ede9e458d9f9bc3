"""Marks become times: every nanosecond has one owner. And two profiles differ only where they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from layerstep.analysis.profile import Spread
from layerstep.analysis.profile_compare import (
    Saved,
    change_of,
    compare_profiles,
    load,
    store,
)
from layerstep.analysis.timing import Cost, fold
from layerstep.analysis.timing_cost import calibrate
from layerstep.engine.timing import Clock, DeviceStamps, Kind, Mark, TimedForward
from layerstep.engine.timing_pace import Pace, waited
from layerstep.errors import UserError

K = Kind


def at(kind: int, now: int, key: int = -1, number: int = 0, took: int = 0) -> Mark:
    return (kind, now, now + took, key, number)


STEP: list[Mark] = [
    at(K.TOOL, 0),
    at(K.ENTER, 100, key=0, number=10),  # data 100
    at(K.ENTER, 110, key=1, number=10),  # the root's own: 10
    at(K.EXIT, 150, key=1, number=12),  # 40; it made the nodes 10 and 11
    at(K.ENTER, 155, key=2, number=13),  # the root made node 12
    at(K.EXIT, 175, key=2, number=15),
    at(K.EXIT, 180, key=0, number=15),
    at(K.NODE, 200, number=14),  # the loss, both ways: 20
    at(K.NODE, 260, number=12),
    at(K.NODE, 265, number=11),
    at(K.END, 345),
    at(K.OPTIMIZER, 350),
    at(K.STEPPED, 390),
    at(K.TOOL, 390),
]


def test_each_nanosecond_of_a_step_is_charged_once() -> None:
    step = fold(STEP, is_training=True)
    assert step.total == 390
    assert [(call.key, call.forward, call.backward) for call in step.calls] == [
        (0, 20, 5),
        (1, 40, 80),
        (2, 20, 60),
    ]
    assert step.outside == {"data": 100, "loss": 20, "after backward": 5, "optimizer": 40}
    assert step.totals()[0] == (80, 145)


def test_our_own_work_is_nobodys_time() -> None:
    slow = list(STEP)
    slow[2] = at(K.ENTER, 110, key=1, number=10, took=15)
    step = fold(slow, is_training=True)
    assert step.tool == 15 and step.total == 390 - 15
    assert step.calls[1].forward == 25


def test_what_a_mark_costs_around_itself_is_taken_out_of_the_caller() -> None:
    step = fold(STEP, is_training=True, cost=Cost(call=3, node=2))
    assert step.calls[0].forward == 20 - 2 * 3
    assert step.calls[2].backward == 60 - 2
    assert step.total + step.tool == 390


def test_a_recomputation_is_time_of_the_backward() -> None:
    marks = [*STEP[:9], at(K.ENTER, 270, key=1, number=20), at(K.EXIT, 300, key=1, number=22), *STEP[10:]]
    step = fold(marks, is_training=True)
    assert step.calls[-1].is_again and step.calls[-1].backward == 30 and step.calls[-1].forward == 0
    assert step.total == 390


def test_without_training_the_rest_is_data() -> None:
    step = fold([*STEP[:7], at(K.TOOL, 400)], is_training=False)
    assert step.outside["data"] == 100 + 220 and step.outside["loss"] == 0


def test_no_marks_and_torn_marks_are_no_error() -> None:
    assert fold([], is_training=True).total == 0
    assert fold([at(K.EXIT, 5), at(K.NODE, 9, number=3), at(K.TOOL, 20)], is_training=True).total == 15


class _Event:
    """Stands for an event of a device: it happens later than it is recorded, and is read after a wait."""

    waits = 0
    clock = 0.0

    def record(self) -> None:
        _Event.clock += 2.0
        self.at = _Event.clock

    def synchronize(self) -> None:
        _Event.waits += 1

    def elapsed_time(self, other: _Event) -> float:
        assert _Event.waits, "read before the device was waited for"
        return other.at - self.at


def test_a_device_is_waited_for_once_and_its_events_are_the_times() -> None:
    """Only the arithmetic: nobody has run this on a device."""
    _Event.waits = 0
    clock = Clock(lambda: False, _raise)
    clock.use(DeviceStamps("stand-in", _Event))
    model = nn.Sequential(nn.Identity(), nn.Identity())
    for key, module in enumerate(model.modules()):
        module.__dict__["forward"] = TimedForward(module, clock, key)
    clock.note(K.TOOL)
    model(torch.ones(1))
    clock.note(K.TOOL)
    marks = clock.cut()
    assert _Event.waits == 0
    step = fold(clock.stamps.nanoseconds(marks), is_training=False)
    assert _Event.waits == 1
    assert [call.key for call in step.calls] == [0, 1, 2]
    assert step.total + step.tool == step.end - step.begin > 0
    assert all(call.forward == 2e6 for call in step.calls[1:])


def _raise(error: Exception) -> Any:
    raise error


def test_calibration_finds_a_cost_and_leaves_nothing() -> None:
    cost = calibrate()
    assert 0 <= cost.call < 1e5 and 0 <= cost.node < 1e6


def test_the_spread_is_the_middle_half() -> None:
    assert Spread.of([1, 2, 3, 4, 5]) == Spread(3, 2, 4)
    assert Spread.of([]) == Spread() and Spread.of([2.0]).low == 2.0


def noisy(seed: int, *, factor: float = 1.0, steps: int = 60, drift: float = 0.35) -> Saved:
    """A busy machine: its pace wanders by a third, one step in ten is struck, neighbours are alike."""
    generator = np.random.default_rng(seed)
    walk = np.cumsum(generator.normal(0, 0.05, steps))
    pace = np.exp(drift * np.tanh(walk) + generator.normal(0, 0.1))
    struck = 1 + (generator.random(steps) < 0.1) * generator.uniform(0.5, 4, steps)
    wall = 0.1 * factor * pace * struck * np.exp(generator.normal(0, 0.02, steps))
    cpu = 0.1 * factor * pace * np.exp(generator.normal(0, 0.02, steps))
    seen = 1e-3 * pace * np.exp(generator.normal(0, 0.03, steps))
    own = {"slow": list(0.6 * wall), "same": list(0.4 * wall / factor)}
    return Saved("training step", list(wall), list(cpu), list(seen), own)


def test_a_real_change_of_ten_percent_is_called_twenty_times_of_twenty() -> None:
    for seed in range(20):
        found = compare_profiles(noisy(2 * seed), noisy(2 * seed + 1, factor=1.1))
        assert found.is_real and found.step.ratio > 1, (seed, found.step)
        faster = compare_profiles(noisy(2 * seed, factor=1.1), noisy(2 * seed + 1))
        assert faster.is_real and faster.step.ratio < 1, (seed, faster.step)


def test_two_equal_runs_are_met_with_silence_twenty_times_of_twenty() -> None:
    for seed in range(20):
        found = compare_profiles(noisy(1000 + 2 * seed), noisy(1001 + 2 * seed))
        assert not found.is_real, (seed, found.step)


def test_the_module_that_changed_is_named_and_no_other() -> None:
    found = compare_profiles(noisy(1), noisy(2, factor=1.3))
    assert set(found.modules) == {"slow"}


def test_waiting_that_no_processor_took_part_in_is_no_change_of_the_program() -> None:
    one = noisy(1)
    other = noisy(2)
    held = Saved(other.word, [1.3 * value for value in other.wall], other.cpu, other.pace, other.own)
    assert not compare_profiles(one, held).is_real


def test_a_change_has_an_interval_around_it() -> None:
    generator = np.random.default_rng(0)
    one, other = generator.normal(1, 0.01, 50), generator.normal(1.2, 0.01, 50)
    change = change_of(list(one), list(other))
    assert change.low < 1.2 < change.high and change.is_real
    assert not change_of([0.0] * 10, [0.0] * 10).is_real


def test_a_saved_profile_comes_back(tmp_path: Path) -> None:
    saved = noisy(3)
    store(saved, tmp_path / "a.json")
    assert load(tmp_path / "a.json") == saved
    (tmp_path / "b.json").write_text('{"layerstep_profile": 1, "nonsense": 2}')
    for name in ("b.json", "missing.json"):
        with pytest.raises(UserError):
            load(tmp_path / name)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UserError, match="too few"):
        compare_profiles(noisy(1, steps=5), noisy(2))


def test_what_others_had_of_the_processor_is_taken_out_and_asks_for_more() -> None:
    quiet, busy = noisy(1), noisy(2)
    lost = [0.5 * value for value in busy.wall]
    wall = [value + more for value, more in zip(busy.wall, lost, strict=True)]
    held = Saved(busy.word, wall, busy.cpu, busy.pace, busy.own, waited=lost)
    assert held.net == pytest.approx(busy.wall) and held.busy == pytest.approx(1 / 3)
    found = compare_profiles(quiet, held)
    assert not found.is_real and found.least > 0.15
    assert found.step.ratio == pytest.approx(compare_profiles(quiet, busy).step.ratio)


def test_the_wait_for_a_processor_only_grows() -> None:
    before = waited()
    assert 0 <= before <= waited()


def test_the_pace_is_measured_now_and_then_and_disturbs_nothing() -> None:
    state = torch.get_rng_state()
    pace = Pace()
    first = pace.now()
    assert first > 0 and pace.now() == first, "not again within a moment"
    assert torch.equal(torch.get_rng_state(), state)
