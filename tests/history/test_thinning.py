"""Which checkpoints are kept."""

from __future__ import annotations

from itertools import pairwise

import pytest

from layerstep.history.thinning import superfluous


def kept(count: int, *, every: int, keep: int) -> list[int]:
    steps: list[int] = []
    for step in range(every, count + 1, every):
        steps.append(step)
        while (place := superfluous(steps, every=every, keep=keep)) is not None:
            assert place < len(steps) - 1, "the newest stays"
            del steps[place]
    return [(count - step) // every for step in reversed(steps)]


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("keep", [1, 2, 3, 8, 12])
def test_they_are_ever_further_apart(every: int, keep: int) -> None:
    for count in range(every, 700 * every, every):
        back = kept(count, every=every, keep=keep) if count % (every * 97) == 0 else [0]
        assert back[0] == 0 and len(back) <= keep
        for nearer, further in pairwise(back[1:]):
            assert further <= 5 * nearer, back


def test_eight_reach_about_a_hundred_steps_back() -> None:
    for count in range(130, 300):
        assert 50 <= kept(count, every=1, keep=8)[-1] <= 128
