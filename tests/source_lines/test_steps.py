"""When a step by lines ends: the rules, without frames."""

from __future__ import annotations

import pytest

from layerstep.engine.resume import Kind
from layerstep.source_lines.steps import LineMoment, LineStep, Side, decide

HERE = 1


def ends(step: LineStep, side: Side, line: int = 10, **more: bool) -> bool:
    return decide(step, LineMoment(HERE, side, line, **more))[0]


@pytest.mark.parametrize(
    "kind, sides",
    [
        (Kind.LINE, {Side.ORIGIN, Side.OUTER, Side.ELSEWHERE}),
        (Kind.NEXT_LINE, {Side.ORIGIN, Side.OUTER}),
        (Kind.UNTIL_LINE, {Side.ORIGIN, Side.OUTER}),
        (Kind.RETURN, {Side.OUTER}),
    ],
)
def test_where_a_step_ends(kind: Kind, sides: set[Side]) -> None:
    assert {side for side in Side if ends(LineStep(kind, HERE), side)} == sides


def test_until_ends_at_its_line_or_later_but_anywhere_outside() -> None:
    step = LineStep(Kind.UNTIL_LINE, HERE, line=12)
    assert [ends(step, Side.ORIGIN, line) for line in (11, 12, 13)] == [False, True, True]
    assert ends(step, Side.OUTER, 2)


def test_only_finish_ends_at_a_return_and_only_at_its_own() -> None:
    assert ends(LineStep(Kind.RETURN, HERE), Side.ORIGIN, is_return=True)
    assert not ends(LineStep(Kind.RETURN, HERE), Side.ELSEWHERE, is_return=True)
    others = (Kind.LINE, Kind.NEXT_LINE, Kind.UNTIL_LINE)
    assert not any(ends(LineStep(kind, HERE), Side.ORIGIN, is_return=True) for kind in others)


def test_other_threads_do_not_end_a_step() -> None:
    step = LineStep(Kind.LINE, HERE)
    assert decide(step, LineMoment(2, Side.ORIGIN)) == (False, step)


def test_a_count_is_counted_down() -> None:
    stops, left = decide(LineStep(Kind.LINE, HERE, count=2), LineMoment(HERE, Side.ORIGIN))
    assert not stops and left is not None and left.count == 1
    assert decide(left, LineMoment(HERE, Side.ORIGIN)) == (True, None)
