"""`profile compare` on made-up machines: what is real is called, what is the machine is not."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
import torch

from layerstep.errors import UserError
from layerstep.memory.now import live_tensors
from layerstep.profile.compare import (
    FEWEST,
    PARTS,
    Round,
    Saved,
    compare_profiles,
    joined,
    load,
    store,
)
from layerstep.profile.pace import MOST, Pace

LAYERS = 12
STEPS = 200


def busy_machine(
    seed: int, *, slower: dict[int, float] | None = None, layers: int = LAYERS, steps: int = STEPS
) -> Saved:
    """A neighbour comes and goes for seconds, and works in bursts shorter than a module's time.

    While it works everything takes 1.6 times as long; one part in ten is struck much harder.
    """
    generator = np.random.default_rng(seed)
    walk = np.cumsum(generator.normal(0, 0.4, steps)) + generator.normal(0, 1)
    share = 0.9 / (1 + np.exp(-walk))  # of the time in which it works

    def taken(seconds: float) -> np.ndarray:
        burst = 1 + 0.6 * generator.binomial(6, share) / 6
        struck = 1 + (generator.random(steps) < 0.1) * generator.uniform(0.5, 4, steps)
        return seconds * burst * struck * np.exp(generator.normal(0, 0.01, steps))

    factor = slower or {}
    forward = {str(at): taken(2e-3 * factor.get(at, 1.0)) for at in range(layers)}
    backward = {str(at): taken(4e-3 * factor.get(at, 1.0)) for at in range(layers)}
    wall = sum(forward.values()) + sum(backward.values())
    one = Round(
        list(wall),
        {path: list(values) for path, values in forward.items()},
        {path: list(values) for path, values in backward.items()},
        [[float(value)] for value in taken(5e-4)],
    )
    return Saved("training step", [one])


def in_rounds(seed: int, *, slower: dict[int, float] | None = None, rounds: int = 4) -> Saved:
    return reduce(joined, (busy_machine(100 * seed + each, slower=slower) for each in range(rounds)))


def without_pace(saved: Saved) -> Saved:
    return replace(saved, rounds=[replace(one, pace=[[] for _ in one.wall]) for one in saved.rounds])


ALL = dict.fromkeys(range(LAYERS), 1.1)


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 20))]
)
def test_a_real_tenth_is_called_and_two_equal_ones_are_not(seed: int) -> None:
    one, equal = in_rounds(3 * seed), in_rounds(3 * seed + 1)
    slower = in_rounds(3 * seed + 2, slower=ALL)
    assert not compare_profiles(one, equal).is_real
    found, back = compare_profiles(one, slower), compare_profiles(slower, one)
    assert found.step.is_real and found.step.low < 1.1 < found.step.high
    assert back.step.is_real and back.step.ratio < 1


def test_one_round_tells_less_than_four() -> None:
    assert compare_profiles(busy_machine(1), busy_machine(2)).least > 0.09
    assert compare_profiles(in_rounds(1), in_rounds(2)).least < 0.07
    assert len(in_rounds(1).rounds) == 4
    with pytest.raises(UserError, match="not rounds of one"):
        joined(in_rounds(1), replace(in_rounds(2), device="toy"))


def test_the_module_that_changed_is_named_and_no_other() -> None:
    found = compare_profiles(busy_machine(1), busy_machine(2, slower={3: 4.0}))
    assert set(found.modules) == {"3"} and found.step.is_real
    assert found.modules["3"].low < 4 < found.modules["3"].high


def test_one_module_for_another_is_told_though_the_step_is_the_same() -> None:
    found = compare_profiles(in_rounds(1, slower={2: 1.5}), in_rounds(2, slower={7: 1.5}))
    assert not found.step.is_real and set(found.modules) == {"2", "7"} and found.is_real
    assert found.modules["2"].ratio < 1 < found.modules["7"].ratio


def test_new_modules_and_those_that_are_gone_have_their_own_place() -> None:
    found = compare_profiles(busy_machine(1), busy_machine(2, layers=LAYERS + 2))
    assert set(found.added) == {"12", "13"} and not found.gone and not found.modules
    assert found.step.is_real and 1.1 < found.step.ratio < 1.25
    assert set(compare_profiles(busy_machine(2, layers=LAYERS + 2), busy_machine(1)).gone) == {"12", "13"}


def test_a_machine_that_has_become_slower_is_no_change_and_asks_for_more() -> None:
    one, other = busy_machine(1), busy_machine(2)
    was = other.rounds[0]
    held = Round(
        [1.5 * each for each in was.wall],
        {path: [1.5 * each for each in values] for path, values in was.forward.items()},
        {path: [1.5 * each for each in values] for path, values in was.backward.items()},
        [[1.5 * each for each in values] for values in was.pace],
    )
    found = compare_profiles(one, replace(other, rounds=[held]))
    assert not found.is_real and found.pace > 1.3 and found.least > 0.11
    slower = replace(other, rounds=[replace(held, pace=was.pace)])
    assert compare_profiles(one, slower).step.is_real, "it was not the machine"


def test_without_a_pace_the_times_stand_as_they_are() -> None:
    assert compare_profiles(without_pace(busy_machine(1)), without_pace(busy_machine(2))).pace == 1.0
    assert compare_profiles(without_pace(busy_machine(1)), busy_machine(2)).pace == 1.0


def test_the_shorter_a_profile_the_larger_a_change_must_be() -> None:
    found = compare_profiles(busy_machine(1, steps=20), busy_machine(2, slower=ALL, steps=20))
    assert found.least > 0.1 and not found.step.is_real


def test_a_model_of_many_small_modules_is_compared_as_a_whole() -> None:
    many = PARTS * 2
    equal = compare_profiles(busy_machine(1, layers=many), busy_machine(2, layers=many))
    slower = busy_machine(3, layers=many, slower=dict.fromkeys(range(many), 1.2))
    assert not equal.is_real and compare_profiles(busy_machine(1, layers=many), slower).step.is_real


def test_a_saved_profile_comes_back(tmp_path: Path) -> None:
    saved = busy_machine(3)
    store(saved, tmp_path / "a.json")
    assert load(tmp_path / "a.json") == saved
    (tmp_path / "b.json").write_text('{"layerstep_profile": 2, "nonsense": 2}')
    (tmp_path / "c.json").write_text('{"layerstep_profile": 1, "word": "step", "rounds": []}')
    (tmp_path / "d.json").write_text('{"layerstep_profile": 2, "word": "s", "rounds": [], "device": "cpu"}')
    for name in ("b.json", "c.json", "d.json", "missing.json"):
        with pytest.raises(UserError):
            load(tmp_path / name)


def test_too_few_steps_and_other_devices_are_refused() -> None:
    with pytest.raises(UserError, match="too few"):
        compare_profiles(busy_machine(1, steps=FEWEST - 1), busy_machine(2))
    with pytest.raises(UserError, match="toy"):
        compare_profiles(busy_machine(1), replace(busy_machine(2), device="toy"))


def test_the_pace_has_its_share_of_the_time_and_disturbs_nothing() -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    pace = Pace()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        before = len(live_tensors())
        found = pace.measure_for(10.0)
        assert len(live_tensors()) == before, "what counts the program's tensors counts none of these"
    assert 0 < len(found) <= MOST and all(each > 0 for each in found)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
