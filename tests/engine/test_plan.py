"""The plan: which modules are tapped for which points and steps, and that no others are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from layerstep.calls.events import Phase
from layerstep.engine.plan import Plan, make_plan
from layerstep.engine.point import Point
from layerstep.engine.points import Break, BreakAtLine, BreakAtOp, Catch, Log, Points, Until
from layerstep.engine.resume import Kind
from layerstep.engine.stepper import GO, Intent
from layerstep.expressions.expression import Expression, Template
from layerstep.module_paths.models import Models
from layerstep.module_paths.where import Where
from layerstep.watchpoints.watchpoint import Watchpoint

ENTER, EXIT, INPUTS, RAISED = Phase.ENTER, Phase.EXIT, Phase.INPUTS, Phase.RAISED


def block() -> nn.Sequential:
    return nn.Sequential(OrderedDict(fc=nn.Linear(2, 2), act=nn.Tanh()))


class Planned:
    """A model `net` with two blocks and a head, its points, and the plan for them."""

    def __init__(self) -> None:
        self.root = nn.Sequential(OrderedDict(one=block(), two=block(), head=nn.Linear(2, 2)))
        self.models, self.points = Models(), Points()
        self.models.add(self.root, "net")

    def set(self, where: str | None, kind: Callable[..., Point] = Break, **options: object) -> Point:
        point = self.points.add(kind(Where.parse(where) if where is not None else None, **options))
        self.points.resolve(self.models)
        return point

    def plan(self, intent: Intent = GO, *enclosing: str, has_modes: bool = False) -> dict[str, set[Phase]]:
        """The tapped phases by path."""
        plan = self._plan(intent, *enclosing, has_modes=has_modes)
        return {self.models.path_of(module): set(wanted) for module, wanted in plan.values()}

    def asked(self) -> dict[tuple[str, Phase], list[int]]:
        """The numbers of the points that are asked at each tap, where there are any."""
        return {
            (self.models.path_of(module), phase): [point.number for point in points]
            for module, wanted in self._plan(GO).values()
            for phase, points in wanted.items()
            if points
        }

    def _plan(self, intent: Intent, *enclosing: str, has_modes: bool = False) -> Plan:
        running = [module for path in enclosing if (module := self.models.at(path)) is not None]
        return make_plan(self.models, self.points, intent=intent, enclosing=running, has_modes=has_modes)


EVERY_PATH = {"net", "one", "one.fc", "one.act", "two", "two.fc", "two.act", "head"}


def test_nothing_armed_taps_nothing() -> None:
    assert Planned().plan() == {}
    assert make_plan(Models(), Points(), intent=GO) == {}


def test_a_break_taps_its_module_and_the_calls_around_it() -> None:
    planned = Planned()
    planned.set("two.fc")
    assert planned.plan() == {"two.fc": {EXIT}, "two": {EXIT}, "net": {ENTER, EXIT}}
    assert planned.asked() == {("two.fc", EXIT): [1]}


def test_a_break_at_an_entry_is_asked_there() -> None:
    planned = Planned()
    planned.set("two.fc", phase=ENTER)
    assert planned.plan() == {"two.fc": {ENTER}, "two": {EXIT}, "net": {ENTER, EXIT}}
    assert planned.asked() == {("two.fc", ENTER): [1]}


def test_a_break_at_the_root_taps_only_the_root() -> None:
    planned = Planned()
    planned.set("net")
    assert planned.plan() == {"net": {ENTER, EXIT}}
    assert planned.asked() == {("net", EXIT): [1]}


def test_points_at_one_module_share_a_tap_in_the_order_of_their_numbers() -> None:
    planned = Planned()
    planned.set("head")
    planned.set("type:Linear")
    planned.set("head", Log, template=Template.parse("x"))
    assert planned.asked() == {
        ("head", EXIT): [1, 2, 3],
        ("one.fc", EXIT): [2],
        ("two.fc", EXIT): [2],
    }


def test_a_module_with_two_paths_taps_the_calls_around_both() -> None:
    planned = Planned()
    planned.root.two.fc = planned.root.one.fc
    planned.models.refresh()
    planned.set("one.fc")
    assert planned.plan() == {
        "one.fc|two.fc": {EXIT},
        "one": {EXIT},
        "two": {EXIT},
        "net": {ENTER, EXIT},
    }


def test_a_break_where_inputs_are_overwritten_notes_them_and_a_log_does_not() -> None:
    planned = Planned()
    planned.root.one.act = nn.ReLU(inplace=True)
    planned.models.refresh()
    planned.set("one.act", Log, template=Template.parse("x"))
    assert planned.plan()["one.act"] == {EXIT}
    planned.set("one.act")
    assert planned.plan()["one.act"] == {EXIT, INPUTS}


def test_until_an_expression_taps_every_exit() -> None:
    planned = Planned()
    planned.set(None, Until, condition=Expression.parse("out.max() > 1"))
    assert planned.plan() == {path: {EXIT} for path in EVERY_PATH} | {"net": {ENTER, EXIT}}
    assert planned.asked() == {(path, EXIT): [0] for path in EVERY_PATH}


@pytest.mark.parametrize("phase", [Phase.BACKWARD, Phase.BACKWARD_ENTER])
def test_a_point_in_the_backward_pass_taps_every_call_and_is_asked_at_none(phase: Phase) -> None:
    planned = Planned()
    planned.set("one.fc", phase=phase)
    assert planned.plan() == {path: {ENTER, EXIT} for path in EVERY_PATH}
    assert planned.asked() == {}


def test_a_point_at_ops_hears_of_the_call_that_it_looks_in() -> None:
    planned = Planned()
    planned.set("one", BreakAtOp, op="addmm")
    assert planned.plan() == {"one": {ENTER, EXIT}, "net": {ENTER, EXIT}}
    assert planned.asked() == {("one", ENTER): [1]}


def test_a_point_at_ops_anywhere_hears_of_the_whole_model() -> None:
    planned = Planned()
    planned.set(None, BreakAtOp, op="addmm")
    assert planned.plan() == {"net": {ENTER, EXIT}}
    assert planned.asked() == {("net", ENTER): [1]}


def test_while_ops_are_looked_for_the_running_calls_are_left_through_a_tap() -> None:
    planned = Planned()
    planned.set(None, BreakAtOp, op="addmm")
    assert planned.plan(GO, "two.fc", "two", "net") == {
        "two.fc": {EXIT},
        "two": {EXIT},
        "net": {ENTER, EXIT},
    }
    planned.points.delete(planned.points.get(1))
    assert planned.plan(GO, "two") == {}
    assert planned.plan(GO, "two", has_modes=True) == {"two": {EXIT}, "net": {ENTER}}


def test_a_catchpoint_hears_of_the_root_what_it_asks_for() -> None:
    planned = Planned()
    planned.set(None, Catch, what="nan", set_by="catch nan", phase=RAISED, root_phases=(RAISED,))
    planned.set(None, Catch, what="nan", set_by="catch nan", root_phases=(ENTER, EXIT))
    assert planned.plan() == {"net": {ENTER, EXIT, RAISED}}
    assert planned.asked() == {("net", RAISED): [1], ("net", ENTER): [2], ("net", EXIT): [2]}


def test_a_catchpoint_that_hears_of_no_root_taps_nothing() -> None:
    planned = Planned()
    planned.set(None, Catch, what="nan", set_by="catch nan", phase=RAISED)
    assert planned.plan() == {}


def test_a_catchpoint_in_a_module_asks_at_all_its_phases() -> None:
    planned = Planned()
    planned.set("head", Catch, what="nan", set_by="catch nan", phases=(ENTER, EXIT))
    assert planned.asked() == {("head", ENTER): [1], ("head", EXIT): [1]}


class Line:
    text = file = label = "train.py:3"
    line = 3
    moved = ""
    is_pending = False


def test_points_that_are_not_at_modules_or_not_in_effect_want_nothing() -> None:
    planned = Planned()
    planned.set("head").enabled = False
    planned.set("no.such.module")
    planned.set(None, BreakAtLine, source_line=Line())
    planned.set("head", phase=Phase.BACKWARD).enabled = False
    planned.points.add(Watchpoint(text="head.weight"))
    assert len(planned.points) == 5
    assert planned.plan() == {}


STEPS = {
    Kind.STEP: {EXIT},
    Kind.NEXT: {EXIT},
    Kind.INTO: {ENTER, EXIT},
    Kind.INTERRUPT: {ENTER, EXIT},
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_taps_every_module(kind: Kind) -> None:
    wanted = {path: STEPS[kind] for path in EVERY_PATH} | {"net": {ENTER, EXIT}}
    assert Planned().plan(Intent(kind)) == wanted


def test_a_step_notes_what_a_layer_that_works_in_place_is_called_with() -> None:
    planned = Planned()
    planned.root.one.act = nn.ReLU(inplace=True)
    planned.models.refresh()
    plan = planned.plan(Intent(Kind.STEP))
    assert {path for path, phases in plan.items() if INPUTS in phases} == {"one.act"}


@pytest.mark.parametrize("kind", [Kind.FINISH, Kind.OP, Kind.KERNEL])
def test_what_ends_with_a_running_call_taps_the_running_calls(kind: Kind) -> None:
    wanted = {"two.fc": {EXIT}, "two": {EXIT}, "net": {ENTER, EXIT}}
    assert Planned().plan(Intent(kind), "two.fc", "two", "net") == wanted


def test_a_finish_out_of_a_call_without_hooks_taps_every_exit() -> None:
    wanted = {path: {EXIT} for path in EVERY_PATH} | {"net": {ENTER, EXIT}}
    assert Planned().plan(Intent(Kind.FINISH, everywhere=True), "two", "net") == wanted


@pytest.mark.parametrize("kind", [Kind.FORWARD, Kind.TRAINED])
def test_until_a_forward_or_a_training_step_taps_the_entry_of_the_root(kind: Kind) -> None:
    assert Planned().plan(Intent(kind), "two", "net") == {"net": {ENTER}}


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind.is_by_line])
def test_steps_by_line_tap_nothing(kind: Kind) -> None:
    assert Planned().plan(Intent(kind), "two", "net") == {}


def test_the_roots_of_all_models_are_counted_while_one_is_armed() -> None:
    planned = Planned()
    other = nn.Sequential(nn.Linear(2, 2))
    planned.models.add(other, "critic")
    planned.set("one.fc")
    assert planned.plan() == {
        "net.one.fc": {EXIT},
        "net.one": {EXIT},
        "net": {ENTER, EXIT},
        "critic": {ENTER},
    }


Shape = list["Shape"]
shapes = st.recursive(st.just([]), lambda children: st.lists(children, min_size=1, max_size=3), max_leaves=10)


def built(shape: Shape) -> nn.Module:
    return nn.Sequential(*map(built, shape)) if shape else nn.Linear(1, 1)


@given(shapes, st.data())
def test_a_plain_break_taps_only_its_module_its_ancestors_and_the_root(
    shape: Shape, data: st.DataObject
) -> None:
    root = nn.Sequential(built(shape))
    paths = [path for path, _ in root.named_modules() if path]
    target = data.draw(st.sampled_from(paths))
    phase = data.draw(st.sampled_from([ENTER, EXIT]))
    models, points = Models(), Points()
    models.add(root, "net")
    point = points.add(Break(Where.parse(target), phase=phase))
    points.resolve(models)
    plan = make_plan(models, points, intent=GO)
    segments = target.split(".")
    around = {".".join(segments[:length]) or "net" for length in range(len(segments))}
    assert {models.path_of(module) for module, _ in plan.values()} == {target} | around
    for module, wanted in plan.values():
        path = models.path_of(module)
        assert (phase if path == target else EXIT) in wanted
        assert all(asked == ((point,) if path == target else ()) for asked in wanted.values())
