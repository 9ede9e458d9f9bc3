"""Which point stops at an event: conditions, hits, what is ignored, and what never stops."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from layerstep.calls.events import Event, Phase
from layerstep.calls.stack import Frame
from layerstep.engine.point import Point
from layerstep.engine.points import Break, BreakAtOp, Catch, Log, Record
from layerstep.engine.session import Session
from layerstep.engine.stop import Caught, Match
from layerstep.expressions.expression import Expression, Template
from layerstep.module_paths.where import Where
from layerstep.render.screen import to_text
from layerstep.watchpoints.watchpoint import Watchpoint

NAN = partial(Catch, what="nan", set_by="catch nan")


class Asked:
    """A session with one layer, and what its points answer at the exits of it."""

    def __init__(self) -> None:
        self.layer = nn.Linear(2, 2)
        self.model = nn.Sequential(self.layer)
        self.session = Session()
        self.session.add_model(self.model, "net")
        self.said: list[tuple[str, str]] = []
        self.session.listen(lambda message: self.said.append((message.kind, to_text(message.view))))

    def point(self, kind: Callable[..., Point] = Break, condition: str = "", **options: object) -> Point:
        asked = Expression.parse(condition) if condition else None
        point = self.session.points.add(kind(Where.parse("0"), condition=asked, **options))
        self.session.points.resolve(self.session.run.models)
        return point

    def ask(self, *points: Point, out: float = 0.0) -> Match | None:
        """The layer has returned a tensor full of `out`."""
        event = Event(Phase.EXIT, self.layer, (torch.zeros(2),), {}, torch.full((2,), out))
        return self.session.decision.ask(points, event, sys._getframe())

    def stops(self, point: Point, *outs: float) -> list[float]:
        """At which of these outputs does the point stop?"""
        return [out for out in outs if self.ask(point, out=out) is not None]


def test_a_plain_point_stops_and_counts_each_time() -> None:
    asked = Asked()
    point = asked.point()
    assert asked.ask(point) == Match(point)
    assert asked.stops(point, 1, 2) == [1, 2]
    assert (point.hits, point.tried) == (3, 0)


def test_no_points_stop_nothing() -> None:
    assert Asked().ask() is None


def test_a_condition_that_does_not_hold_is_no_hit() -> None:
    asked = Asked()
    point = asked.point(condition="out.max() > 2")
    assert asked.stops(point, 1, 3, 2, 4) == [3, 4]
    assert (point.hits, point.tried) == (2, 4)


def test_a_hit_that_is_ignored_is_counted() -> None:
    asked = Asked()
    point = asked.point(ignore=2)
    assert asked.stops(point, 1, 2, 3, 4) == [3, 4]
    assert (point.hits, point.ignore) == (4, 0)


def test_only_what_fulfils_the_condition_uses_up_what_is_to_be_ignored() -> None:
    asked = Asked()
    point = asked.point(condition="out.max() > 2", ignore=1)
    assert asked.stops(point, 1, 3, 2, 4, 5) == [4, 5]
    assert (point.hits, point.tried, point.ignore) == (3, 5, 0)


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 4), st.integers(0, 5))
def test_condition_then_count_then_ignore(outs: list[int], ignore: int, above: int) -> None:
    asked = Asked()
    point = asked.point(condition=f"out[0] > {above}", ignore=ignore)
    hits = [out for out in outs if out > above]
    assert asked.stops(point, *outs) == hits[ignore:]
    assert point.tried == len(outs)
    assert point.hits == len(hits)
    assert point.ignore == max(ignore - len(hits), 0)


def test_a_condition_that_raises_stops_with_the_error_whatever_is_ignored() -> None:
    asked = Asked()
    point = asked.point(condition="out.no_such_thing > 1", ignore=3)
    match = asked.ask(point)
    assert match is not None and match.point is point
    assert match.trouble.startswith("condition 'out.no_such_thing > 1' raised AttributeError: ")
    assert (point.hits, point.tried, point.ignore) == (1, 1, 3)


def test_the_error_of_a_condition_is_one_line() -> None:
    asked = Asked()
    match = asked.ask(asked.point(condition="[][1] if (_ := '''a\nb''') else 0"))
    assert match is not None and "\n" not in match.trouble and match.trouble


def test_an_answer_that_has_no_truth_is_an_error_of_the_condition() -> None:
    asked = Asked()
    match = asked.ask(asked.point(condition="out > 1"))
    assert match is not None and "ambiguous" in match.trouble


def test_a_condition_leaves_the_random_numbers_of_the_run_alone() -> None:
    asked = Asked()
    point = asked.point(condition="__import__('torch').rand(1).item() < 2")
    torch.manual_seed(0)
    bare = torch.rand(1)
    torch.manual_seed(0)
    assert asked.ask(point) is not None
    assert torch.equal(torch.rand(1), bare)


def test_a_condition_sees_the_variables_of_the_caller() -> None:
    asked = Asked()
    point = asked.point(condition="factor * out[0] > 5")

    def call(factor: int) -> Match | None:
        return asked.ask(point, out=2.0)

    # The frame of `ask` stands for torch's call of the module: the caller is the function above it.
    assert call(factor=1) is None
    assert call(factor=3) == Match(point)


def test_a_check_that_catches_nothing_counts_nothing() -> None:
    asked = Asked()
    point = asked.point(NAN, check=lambda event: None, ignore=1)
    assert asked.ask(point) is None
    assert (point.hits, point.ignore) == (0, 1)


def test_what_a_check_catches_is_counted_ignored_and_handed_on() -> None:
    asked = Asked()
    events: list[Event] = []
    found = Caught("a shape has changed")

    def check(event: Event) -> Caught | None:
        events.append(event)
        return found if event.output[0] > 1 else None

    point = asked.point(NAN, check=check, ignore=1)
    assert asked.stops(point, 0, 2, 0) == []
    assert asked.ask(point, out=3) == Match(point, caught=found)
    assert (len(events), point.hits) == (4, 2)


def test_a_check_is_asked_before_the_condition() -> None:
    asked = Asked()
    point = asked.point(
        NAN,
        "out[0] > 5",
        check=lambda event: Caught("large") if event.output[0] > 1 else None,
    )
    assert asked.stops(point, 0, 3, 7) == [7]
    assert (point.tried, point.hits) == (2, 1)


def test_a_log_says_its_line_and_never_stops() -> None:
    asked = Asked()
    point = asked.point(Log, "out[0] > 1", template=Template.parse("{name}: {out[0]:.1f}"), ignore=1)
    assert asked.stops(point, 0, 2, 3, 4) == []
    assert asked.said == [("log", "0: 3.0"), ("log", "0: 4.0")]
    assert point.hits == 3


def test_a_recording_measures_and_never_stops() -> None:
    asked = Asked()
    frames: list[Frame] = []
    point = asked.point(Record, "out[0] > 1", action=frames.append)
    assert asked.stops(point, 0, 2, 3) == []
    assert [frame.output[0].item() for frame in frames] == [2, 3]
    assert [frame.path for frame in frames] == ["0", "0"]
    assert point.hits == 2


def test_of_several_points_all_are_counted_and_the_first_that_stops_is_the_match() -> None:
    asked = Asked()
    fails, ignored, stops, second = (
        asked.point(condition="out[0] > 9"),
        asked.point(ignore=1),
        asked.point(),
        asked.point(condition="out[0] < 9"),
    )
    log = asked.point(Log, template=Template.parse("logged"))
    assert asked.ask(fails, ignored, stops, second, log) == Match(stops)
    assert [point.hits for point in (fails, ignored, stops, second, log)] == [0, 1, 1, 1, 1]
    assert asked.said == [("log", "logged")]


def test_a_disabled_point_is_neither_asked_nor_counted() -> None:
    asked = Asked()
    disabled = asked.point(condition="1 / 0", ignore=2, enabled=False)
    assert asked.ask(disabled) is None
    assert asked.session.decision.meets(disabled, None) is None
    assert (disabled.hits, disabled.tried, disabled.ignore) == (0, 0, 2)
    disabled.enabled = True
    assert asked.ask(disabled) is not None


def test_a_point_at_ops_is_not_met_by_its_modules() -> None:
    asked = Asked()
    point = asked.point(BreakAtOp, op="addmm")
    assert asked.ask(point) is None
    assert point.hits == 0


class Twice(nn.Module):
    """One layer under two names, which asks a point at the exit of each call."""

    def __init__(self, ask: Callable[[], Match | None]) -> None:
        super().__init__()
        self.first = self.second = nn.Identity()
        self.answers: list[Match | None] = []
        self.first.register_forward_hook(lambda *_: self.answers.append(ask()))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_a_point_at_one_path_of_a_shared_module_passes_its_other_calls_by() -> None:
    session = Session()

    def ask() -> Match | None:
        frame = sys._getframe(2)  # torch's call of the layer
        event = Event(Phase.EXIT, model.first, (), {}, torch.zeros(1))
        return session.decision.ask((point,), event, frame)

    model = Twice(ask)
    session.add_model(model, "net")
    point = session.points.add(Break(Where.parse("second")))
    session.points.resolve(session.run.models)
    model(torch.zeros(1))
    assert model.answers == [None, Match(point)]
    assert point.hits == 1


def watchpoint(asked: Asked, condition: str = "", ignore: int = 0) -> Watchpoint:
    point = Watchpoint(text="0.weight", ignore=ignore)
    point.condition = Expression.parse(condition) if condition else None
    asked.session.points.add(point)
    return point


def test_what_a_feature_has_found_is_counted_and_ignored_like_the_rest() -> None:
    asked = Asked()
    point = watchpoint(asked, ignore=2)
    meets = asked.session.decision.meets
    assert [meets(point, None) for _ in range(4)] == [None, None, Match(point), Match(point)]
    assert (point.hits, point.ignore) == (4, 0)


@pytest.mark.parametrize(
    ("condition", "hits", "stops"), [("name == '0'", 1, True), ("name == 'other'", 0, False)]
)
def test_what_a_feature_has_found_fulfils_the_condition_where_it_is(
    condition: str, hits: int, stops: bool
) -> None:
    asked = Asked()
    point = watchpoint(asked, condition)
    place = Frame(asked.session.run.models, asked.layer)
    assert asked.session.decision.meets(point, place) == (Match(point) if stops else None)
    assert (point.tried, point.hits) == (1, hits)


def test_what_a_feature_has_found_stops_where_the_condition_raises() -> None:
    asked = Asked()
    point = watchpoint(asked, "1 / 0", ignore=1)
    match = asked.session.decision.meets(point, None)
    assert match is not None and "ZeroDivisionError" in match.trouble
    assert (point.hits, point.tried, point.ignore) == (1, 1, 1)
