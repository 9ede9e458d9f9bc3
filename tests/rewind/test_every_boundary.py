"""`back` from every boundary of a forward to every earlier one; then the run ends as a bare one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from layerstep import DebugConsole
from layerstep.engine.messages import Message
from zoo import ZOO, Entry, Run, console_on, differences, hook_count, loop, play, seed, taps_on

QUICK, LONG = 7, 20
"""So many boundaries of one model are gone through in all pairs; n³/6 lines are typed."""


def _cases() -> Iterator[Any]:
    for kind in ZOO:
        for mode in ("train", "frozen"):
            if not kind.lazy:
                yield pytest.param(kind, mode, LONG, marks=pytest.mark.long, id=f"{kind}-{mode}-all")
        if not kind.long and not kind.lazy:
            yield pytest.param(kind, "train", QUICK, id=f"{kind}")


Place = tuple[str, str]
BREAK = ["break **", "break ** enter", "continue"]


def _played(kind: Entry, mode: str, lines: list[str]) -> tuple[Run, list[Place], DebugConsole]:
    """A run with these lines, and where it stopped in its first forward."""
    seed(0)
    model = kind.build()
    seed(1)
    console, seen = console_on(model, lines)
    places: list[Place] = []

    def hear(message: Message) -> None:
        if message.kind == "stop" and message.stop is not None and message.stop["forward"] == 1:
            places.append((message.stop["path"], message.stop["phase"]))

    console.session.listen(hear)
    with console:
        state = loop(kind, model, mode)
    return Run(state, model, seen), places, console


def _lines(boundaries: int) -> list[str]:
    """Stop at each boundary of the first forward; from each, go to each earlier one and return."""
    lines = list(BREAK)
    for here in range(1, boundaries):
        lines.append("continue")
        for far in range(1, here + 1):
            lines += [f"back {far}", *["continue"] * far]
    return [*lines, "delete", "continue"]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(("kind", "mode", "most"), list(_cases()))
def test_back_from_every_boundary_to_every_earlier_one(kind: Entry, mode: str, most: int) -> None:
    bare = play(kind, mode)
    _, places, _ = _played(kind, mode, [*BREAK, *["continue"] * most, "delete", "continue"])
    lines = _lines(min(most, len(places)))
    run, stops, console = _played(kind, mode, lines)
    assert differences(bare.state, run.state) == []
    text = run.seen.text
    assert not run.seen.bugs and "not the same bits" not in text and "did not come" not in text
    at, expected = 0, [places[0]]
    for line in lines[len(BREAK) : -2]:
        at += 1 if line == "continue" else -int(line.split()[1])
        expected.append(places[at])
    assert stops[: len(expected)] == expected
    assert hook_count(run.model) == hook_count(bare.model) and not taps_on(run.model)
    assert not console.session.run.followers
