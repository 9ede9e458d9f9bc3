"""The benchmark of the doctor: its faults can be planted, and it judges the doctor rightly on a few."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import benchmarks
import pytest
from benchmarks.diagnosis.cases import PROGRAMS, Fault, Healthy
from benchmarks.diagnosis.faults import all_faults
from benchmarks.diagnosis.healthy import all_healthy
from benchmarks.diagnosis.judging import Judged, is_same, judge, play
from benchmarks.diagnosis.page import page

from layerstep.doctor.watch import watching

FAULTS = {fault.name: fault for fault in all_faults()}
HEALTHY = {healthy.name: healthy for healthy in all_healthy()}

PAIRS = [
    ("mlp: gradients never zeroed", "mlp, as it is"),
    ("mlp: softmax before cross-entropy", "log-softmax in the model and NLLLoss"),
    ("autoencoder: sigmoid before the loss with logits", "sigmoid and BCELoss, several labels a row"),
]


def test_there_are_as_many_cases_as_promised() -> None:
    assert len(FAULTS) == len(list(all_faults())) >= 45
    assert len(HEALTHY) == len(list(all_healthy())) >= 60
    assert {fault.program for fault in FAULTS.values()} == set(PROGRAMS)
    assert sum(fault.is_held_out for fault in FAULTS.values()) >= 40
    assert sum(case.is_held_out for case in HEALTHY.values()) >= 20


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_and_says_what_is_right(fault: Fault) -> None:
    if fault.program == "trainer":
        pytest.importorskip("accelerate")
    assert callable(fault.load())
    assert fault.rules and (fault.lines or fault.names)


def test_a_fault_whose_text_is_not_in_the_program_is_refused() -> None:
    fault = Fault(name="x", program="mlp", edits=[("no such text", "")], rules=("non-finite",))
    with pytest.raises(ValueError, match="occurs 0 times"):
        fault.load()


@pytest.mark.parametrize("name", [fault for fault, _ in PAIRS])
def test_a_planted_fault_is_named_and_localised(name: str) -> None:
    judged = judge(FAULTS[name], 0, level="extreme", quick=True, others=False)
    assert judged.is_right and judged.is_localised, judged.findings
    assert judged.is_bit_equal
    assert not judged.notices


@pytest.mark.parametrize("name", [healthy for _, healthy in PAIRS])
def test_a_healthy_training_hears_nothing_and_stays_bit_equal(name: str) -> None:
    judged = judge(HEALTHY[name], 0, level="extreme", quick=True, others=False)
    assert judged.warnings == 0, judged.findings
    assert judged.is_bit_equal
    assert not judged.notices


def _assert_the_doctor_changes_no_bit(program: str, steps: int) -> None:
    """Of the losses, the parameters and the buffers of the program as it is."""
    if program == "trainer":
        pytest.importorskip("accelerate")
    train = Healthy(name=program, program=program).load()
    bare = play(train, 0, steps)
    with watching("extreme") as watch:
        watched = play(train, 0, steps)
        assert watch.doctor.session.run.is_attached, "nothing of the doctor's failed"
    assert len(bare.losses) == steps and not bare.raised
    assert watch.doctor.budget.looks >= 5, "a step may be made of several losses"
    assert is_same(bare, watched)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_looks_of_the_first_steps_change_no_bit_of_a_program(program: str) -> None:
    collects_before_it_trains = program == "agent"
    _assert_the_doctor_changes_no_bit(program, 40 if collects_before_it_trains else 11)


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS)
def test_two_hundred_steps_of_a_program_are_bit_equal(program: str) -> None:
    _assert_the_doctor_changes_no_bit(program, 200)


def test_published_thresholds_and_anomaly_mode_are_asked_too() -> None:
    judged = judge(FAULTS["regression: missing values"], 0, level="basic", quick=True)
    assert judged.anomaly
    assert judged.published["seed-email"] > 0.9


def test_a_run_that_differs_in_one_bit_is_told() -> None:
    one = HEALTHY["plain SGD on a linear softmax"].load()
    first, again, other = play(one, 0, 20), play(one, 0, 20), play(one, 1, 20)
    assert is_same(first, again)
    assert not is_same(first, other)
    assert not is_same(first, replace(again, losses=[*again.losses[:-1], again.losses[-1] + 1e-9]))


def test_the_page_tells_the_halves_apart() -> None:
    runs = [
        Judged(
            case=name,
            kind="fault",
            program=FAULTS[name].program,
            is_held_out=FAULTS[name].is_held_out,
            seed=0,
            level="basic",
            expected=FAULTS[name].rules,
            first=FAULTS[name].rules[0],
            is_right=True,
            is_localised=True,
            is_among=True,
            is_bit_equal=True,
        )
        for name in (
            "mlp: gradients never zeroed",
            next(each.name for each in FAULTS.values() if each.is_held_out),
        )
    ]
    text = page(runs)
    assert "| development, basic | " in text and "| held out, basic " in text
    assert text.count("1 of 1 (100%)") >= 6


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(benchmarks.__file__).parent.glob("*.py")))
def test_the_modules_of_the_benchmarks_import(name: str) -> None:
    """They use names of the library that no other test of theirs would miss."""
    if name != "__main__":
        importlib.import_module(f"benchmarks.{name}")


def test_a_healthy_case_is_a_function_or_a_program() -> None:
    for case in HEALTHY.values():
        assert isinstance(case, Healthy) and (case.train is None) == bool(case.program)
