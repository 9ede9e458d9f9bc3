"""Points: their numbers, where they are set as models come, and the lines that set them again."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from layerstep.assembly import assemble
from layerstep.calls.events import Phase
from layerstep.config import Config
from layerstep.engine.point import Point, PointKind
from layerstep.engine.points import Break, Log, Points, Until
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.expressions.expression import Template
from layerstep.module_paths.models import Models
from layerstep.module_paths.where import Where
from layerstep.render.screen import to_text
from layerstep.views import Notice
from layerstep.watchpoints.watchpoint import Watchpoint


def net() -> nn.Sequential:
    block = nn.Sequential(OrderedDict(fc=nn.Linear(2, 2), act=nn.ReLU()))
    return nn.Sequential(OrderedDict(one=block, head=nn.Linear(2, 2)))


class Lines:
    """A session with a model, which answers lines; it is not attached to a run."""

    def __init__(self, *lines: str) -> None:
        self.model = net()
        self.session: Session = assemble(Config())
        self.session.add_model(self.model, "net")
        for line in lines:
            self.run(line)

    def run(self, line: str) -> str:
        view, resume = self.session.prompt.run_line(line)
        assert resume is None
        assert not (isinstance(view, Notice) and view.level == "error"), view
        return to_text(view, width=200) if view is not None else ""

    @property
    def points(self) -> list[Point]:
        return self.session.points.shown


# --- numbers ---


def test_points_are_numbered_from_one() -> None:
    points = Points()
    assert [points.add(Break()).number for _ in range(3)] == [1, 2, 3]


def test_the_number_of_a_deleted_point_is_not_given_again() -> None:
    points = Points()
    first = points.add(Break())
    points.delete(first)
    assert points.add(Log(template=Template.parse("x"))).number == 2
    assert [point.number for point in points] == [2]


def test_points_and_watches_share_their_numbers() -> None:
    lines = Lines(
        "break head", "watch 1 + 1", "watch --stop head.weight", "delete 1", "unwatch 2", "log head 'x'"
    )
    assert [point.number for point in lines.points] == [3, 4]
    lines.run("watch 2 + 2")
    assert list(lines.session.prompt.watches) == [5]


@given(st.lists(st.sampled_from(["add", "take", "watch", "until", "delete", "forget"]), max_size=30))
def test_no_number_is_given_twice(steps: list[str]) -> None:
    points, given_numbers = Points(), []
    for step in steps:
        if step == "add":
            given_numbers.append(points.add(Break()).number)
        elif step == "take":
            given_numbers.append(points.add(Watchpoint()).number)
        elif step == "watch":
            given_numbers.append(points.next_number())
        elif step == "until":
            assert points.add(Until()).number == 0
        elif step == "forget":
            points.forget_until()
        elif points.shown:
            points.delete(points.shown[0])
    assert given_numbers == list(range(1, len(given_numbers) + 1))


def test_the_end_of_an_until_is_hidden_and_forgotten_by_itself() -> None:
    points = Points()
    until = points.add(Until())
    shown = points.add(Break())
    assert (until.label, shown.label) == ("", "break 1")
    assert points.shown == [shown] and list(points) == [until, shown]
    points.forget_until()
    points.forget_until()
    assert list(points) == [shown]


def test_a_point_is_found_by_its_number_and_a_wrong_number_names_the_others() -> None:
    points = Points()
    with pytest.raises(BadArguments, match="no point 1") as none_yet:
        points.get(1)
    assert "there are none yet" in none_yet.value.hint
    first, second = points.add(Break()), points.add(Log(template=Template.parse("x")))
    assert points.get("1") is first and points.get(2) is second
    with pytest.raises(BadArguments, match="no point one") as unknown:
        points.get("one")
    assert unknown.value.hint == "there are 1, 2"


def test_points_may_be_deleted_while_they_are_gone_through() -> None:
    points = Points()
    for _ in range(3):
        points.add(Break())
    for point in points:
        points.delete(point)
    assert len(points) == 0


# --- where they are ---


def set_at(points: Points, where: str) -> Point:
    return points.add(Break(Where.parse(where)))


def test_a_pending_point_is_set_when_its_model_comes() -> None:
    models, points, model = Models(), Points(), net()
    point = set_at(points, "one.fc")
    assert points.resolve(models) == []
    assert point.is_pending and point.trouble
    models.add(model, "net")
    assert points.resolve(models) == [(point, 1)]
    assert (point.is_pending, point.trouble) == (False, "")
    assert point.targets == [("one.fc", id(model.one.fc))]
    assert points.resolve(models) == []


def test_a_point_that_names_no_module_waits_and_says_why() -> None:
    models, points, model = Models(), Points(), net()
    models.add(model, "net")
    point = set_at(points, "one.fcc")
    assert points.resolve(models) == []
    assert point.is_pending and "one.fcc" in point.trouble


@pytest.mark.parametrize("where", ["**.fc", "/fc$/", "type:Linear"])
def test_a_pattern_grows_with_every_model(where: str) -> None:
    models, points, first, second = Models(), Points(), net(), net()
    point = set_at(points, where)
    models.add(first, "a")
    ((_, at_first),) = points.resolve(models)
    models.add(second, "b")
    assert points.resolve(models) == [(point, at_first)]
    assert len(point.targets) == 2 * at_first
    assert {path.partition(".")[0] for path, _ in point.targets} == {"a", "b"}


def test_with_a_second_model_a_path_begins_with_the_name_of_its_own() -> None:
    models, points, first, second = Models(), Points(), net(), net()
    models.add(first, "actor")
    point = set_at(points, "one.fc")
    points.resolve(models)
    assert point.targets == [("one.fc", id(first.one.fc))]
    models.add(second, "critic")
    assert points.resolve(models) == []
    assert point.targets == [("actor.one.fc", id(first.one.fc))]


def test_a_point_at_one_path_of_a_shared_module_must_ask_who_called() -> None:
    models, points, model = Models(), Points(), net()
    model.tail = model.one.fc
    models.add(model, "net")
    shared, one, pattern = (set_at(points, where) for where in ("one.fc", "head", "type:Linear"))
    points.resolve(models)
    assert [point.is_shared for point in (shared, one, pattern)] == [True, False, False]
    assert [point.is_plain for point in (shared, one, pattern)] == [False, True, True]
    assert [key for _, key in pattern.targets] == [id(model.one.fc), id(model.head)]


def test_a_module_that_is_shared_later_is_asked_about_from_then_on() -> None:
    models, points, model = Models(), Points(), net()
    models.add(model, "net")
    point = set_at(points, "one.fc")
    points.resolve(models)
    assert not point.is_shared
    model.tail = model.one.fc
    models.refresh()
    points.resolve(models)
    assert point.is_shared


def test_a_point_follows_the_module_that_takes_the_place_of_its_own() -> None:
    models, points, model = Models(), Points(), net()
    models.add(model, "net")
    point = set_at(points, "head")
    points.resolve(models)
    model.head = nn.Linear(2, 3)
    models.refresh()
    points.resolve(models)
    assert point.targets == [("head", id(model.head))]


def test_a_point_whose_module_is_gone_is_pending_again() -> None:
    models, points, model = Models(), Points(), net()
    models.add(model, "net")
    point = set_at(points, "head")
    points.resolve(models)
    del model.head
    models.refresh()
    points.resolve(models)
    assert point.is_pending and point.trouble


def test_a_point_without_a_place_is_never_pending() -> None:
    points = Points()
    assert not points.add(Until()).is_pending
    points.resolve(Models())
    assert not points.get(0).targets


# --- the line that sets it again ---

HERE = Path(__file__)
FUNCTION_LINE = test_points_are_numbered_from_one.__code__.co_firstlineno + 1

BREAKS = [
    "break one.fc",
    "break one.fc enter",
    "break one.fc backward",
    "break one.fc if out.max() > 1",
    "break one.fc enter if inp.sum() > 0 if inp is not None else False",
    "break type:Linear if 'if' in name",
    "break /fc$/ enter",
    "break **.fc backward if grad_out.norm() > 10",
    "break net",
    "break one.fc if name == 'a \\' b' and out@-1 is not None",
    "tbreak head",
    "tbreak one.* enter if kwargs",
    "break op:softmax",
    "break op:*norm* in one",
    "break op:aten.mm in head if out.max() > 9",
    "tbreak op:matmul in type:Linear",
    f"break {HERE}:{FUNCTION_LINE}",
    f"tbreak {HERE}:{FUNCTION_LINE} if points is not None",
    "break no_such_file_here.py:12",
]
LOGS = [
    'log one.fc "{name} {out.shape}"',
    'log **.fc "{out.std():.3g} {{}}" if out.isnan().any()',
    r'log head "a \"quoted\" word and a \\ backslash"',
    'log head ""',
]
CATCHES = [
    "catch nan",
    "catch inf in one forward",
    "catch nonfinite backward param",
    "catch nonfinite --every-op",
    "catch exception",
    "catch exception RuntimeError in one.*",
    "catch shape",
    "catch dtype one",
    "catch nograd head",
    "catch slow 50 one.*",
]
RECORDS = ["record head", "record one.* every 10", "record head every 2 --tensors if out.max() > 1"]
WATCHES = ["watch --stop head.weight", "watch --stop head.weight[0]", "watch --stop one.fc.bias.grad"]


def looks(point: Point) -> dict[str, object]:
    """What the user set of a point."""
    where, condition, line = point.where, point.condition, point.source_line
    own = {
        name: getattr(point, name)
        for name in ("op", "template", "what", "phases", "options", "set_by", "text")
        if hasattr(point, name)
    }
    return {
        "class": type(point),
        "where": where.text if where is not None else None,
        "phases": (point.phase, point.asked_at, point.root_phases),
        "line": (line.file, line.line, line.is_pending) if line is not None else None,
        "condition": condition.text if condition is not None else None,
        "temporary": point.temporary,
        "targets": [path for path, _ in point.targets],
        "own": own,
    }


@pytest.mark.parametrize("line", BREAKS + LOGS + CATCHES + RECORDS + WATCHES)
def test_the_line_of_a_point_sets_it_again(line: str) -> None:
    (point,) = Lines(line).points
    assert point.line() == line
    (again,) = Lines(point.line()).points
    assert looks(again) == looks(point)


@settings(max_examples=30)
@given(st.text(st.characters(codec="utf-8", exclude_categories=("C", "Zl", "Zp")), max_size=30))
def test_any_text_of_a_log_is_set_again(text: str) -> None:
    quoted = text.replace("{", "{{").replace("}", "}}").replace("\\", "\\\\").replace('"', '\\"')
    lines = Lines(f'log head "{quoted}"')
    (point,) = lines.points
    assert isinstance(point, Log) and point.template.format({}) == text
    lines.run(point.line())
    again = lines.points[1]
    assert isinstance(again, Log) and again.template == point.template


def test_saved_points_are_set_again_with_all_that_was_said_of_them(tmp_path: Path) -> None:
    before = Lines(
        "break one.fc",
        *BREAKS[:3],
        "delete 1",
        "watch --stop head.weight",
        "catch shape",
        "ignore 2 3",
        "disable 3",
        "commands 4 stats out; continue",
        "condition 5 out is not None",
        "ignore 5 2",
        "disable 5",
        "commands 5 silent; continue",
        "condition 6 forward > 2",
        "condition 2 forward > 3",
        "watch 1 + 1",
        "alias go = continue",
        f"save {tmp_path / 'points'}",
    )
    after = Lines("break head", f"source {tmp_path / 'points'}")
    assert [looks(point) for point in after.points[1:]] == [looks(point) for point in before.points]
    for one, other in zip(after.points[1:], before.points, strict=True):
        assert (one.ignore, one.enabled, one.commands) == (other.ignore, other.enabled, other.commands)
    assert [watch.expression.text for watch in after.session.prompt.watches.values()] == ["1 + 1"]
    assert after.session.prompt.aliases == {"go": "continue"}
    untouched = after.points[0]
    assert (untouched.ignore, untouched.enabled, untouched.commands) == (0, True, ())


# --- a watchpoint is a point ---


def test_a_watchpoint_takes_what_is_said_of_points() -> None:
    lines = Lines("break head", "watch --stop head.weight")
    point = lines.session.points.get(2)
    assert isinstance(point, Watchpoint) and point in lines.points
    assert (point.label, point.kind, point.phase) == ("watch 2", PointKind.WATCH, Phase.EXIT)
    lines.run("disable 2")
    assert not point.enabled and not point.is_live
    lines.run("enable 2")
    assert point.enabled and point.is_live
    lines.run("ignore 2 4")
    lines.run("condition 2 forward > 1")
    lines.run("commands 2 silent; continue")
    assert (point.ignore, point.commands) == (4, ("silent", "continue"))
    assert point.condition is not None and point.condition.text == "forward > 1"
    assert "head.weight" in lines.run("info breaks")
    lines.run("delete 2")
    assert [each.number for each in lines.points] == [1]


def test_a_watchpoint_is_dropped_by_unwatch_too() -> None:
    lines = Lines("watch --stop head.weight", "watch --stop head.bias", "unwatch 1")
    assert [point.number for point in lines.points] == [2]
    lines.run("unwatch head.bias")
    assert lines.points == []


def test_a_watchpoint_waits_for_its_model() -> None:
    session = assemble(Config())
    session.prompt.run_line("watch --stop head.weight")
    (point,) = session.points.shown
    assert point.is_pending and not point.is_at_modules
    model = net()
    session.attach()
    try:
        session.add_model(model, "net")
        assert not point.is_pending
    finally:
        session.detach()


def test_a_watchpoint_holds_on_to_no_tensor() -> None:
    lines = Lines("watch --stop head.weight")
    (point,) = lines.points
    assert isinstance(point, Watchpoint)
    assert torch.equal(point.tensor(), lines.model.head.weight)  # type: ignore[arg-type]
    lines.model.head = None  # type: ignore[assignment]
    assert point.tensor() is None
