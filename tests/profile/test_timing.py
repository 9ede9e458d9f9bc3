"""Marks become times: every nanosecond has one owner. And two profiles differ only where they do."""

from __future__ import annotations

import pytest
from torch import nn

from layerstep.profile.call_times import Cost, fold
from layerstep.profile.report import StepSpread
from layerstep.profile.stamp_cost import calibrate
from layerstep.profile.stamps import DeviceStamps, Mark, stamps_for
from layerstep.profile.timing import MarkKind

K = MarkKind


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
    assert step.calls[-1].is_recomputation and step.calls[-1].backward == 30 and step.calls[-1].forward == 0
    assert step.total == 390


def test_without_training_the_rest_is_data() -> None:
    step = fold([*STEP[:7], at(K.TOOL, 400)], is_training=False)
    assert step.outside["data"] == 100 + 220 and step.outside["loss"] == 0


def test_no_marks_and_torn_marks_are_no_error() -> None:
    assert fold([], is_training=True).total == 0
    assert fold([at(K.EXIT, 5), at(K.NODE, 9, number=3), at(K.TOOL, 20)], is_training=True).total == 15


def test_weights_on_the_processor_have_its_clock() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    stamps = stamps_for([("", model), *model.named_children()])
    assert stamps.is_host and stamps.device == "cpu" and not stamps.note


def test_what_cannot_time_an_event_is_no_clock() -> None:
    class Event:
        def record(self) -> None: ...

        def synchronize(self) -> None:
            raise RuntimeError("not supported")

    with pytest.raises(RuntimeError, match="not supported"):
        DeviceStamps("toy:0", Event)


def test_an_optimizer_that_steps_another_one_inside_is_one_stretch_of_time() -> None:
    inner = [at(K.OPTIMIZER, 360), at(K.STEPPED, 370)]
    step = fold([*STEP[:12], *inner, *STEP[12:]], is_training=True)
    assert step.outside["optimizer"] == 40 and step.outside["data"] == 100


def test_calibration_finds_a_cost_and_leaves_nothing() -> None:
    cost = calibrate()
    assert 0 <= cost.call < 1e5 and 0 <= cost.node < 1e6


def test_the_spread_is_the_middle_half() -> None:
    assert StepSpread.of([1, 2, 3, 4, 5]) == StepSpread(3, 2, 4)
    assert StepSpread.of([]) == StepSpread() and StepSpread.of([2.0]).low == 2.0
