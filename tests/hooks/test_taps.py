"""Taps: what they report, and that no other than a planned one is on any module or copy of it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from layerstep._torch import call_frames, called_module
from layerstep.calls.events import Phase
from layerstep.engine.point import Point
from layerstep.engine.points import Break
from layerstep.hooks.taps import Sink, Taps
from layerstep.hooks.temporary import watching_calls, watching_output

PHASES = (Phase.ENTER, Phase.EXIT, Phase.INPUTS, Phase.RAISED)
TABLES = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


class Reported:
    """Taps, and everything that they report."""

    def __init__(self) -> None:
        self.events: list[tuple[Phase, tuple[Point, ...], nn.Module]] = []
        self.calls: list[tuple[Any, Any, Any]] = []
        self.entered: list[tuple[nn.Module, Any, Any]] = []
        self.raised: list[tuple[BaseException, tuple[Point, ...]]] = []
        self.answer: Any = None
        self.then: Callable[[], None] = lambda: None
        self.sink = Sink(
            self._report,
            lambda module, plain: None,
            lambda error, points: self.raised.append((error, points)),
            lambda module, args, kwargs: self.entered.append((module, args, kwargs)),
        )
        self.taps = Taps(self.sink)

    def _report(
        self,
        phase: Phase,
        points: tuple[Point, ...],
        module: nn.Module,
        args: Any,
        kwargs: Any,
        output: Any,
        frame: FrameType,
    ) -> Any:
        assert called_module(next(call_frames(frame)))[0] is module, "the frame is one of the call"
        self.events.append((phase, points, module))
        self.calls.append((args, kwargs, output))
        self.then()
        return self.answer

    def put(self, module: nn.Module, *phases: Phase, points: tuple[Point, ...] = ()) -> None:
        self.taps.apply({id(module): (module, dict.fromkeys(phases, points))})

    @property
    def phases(self) -> list[Phase]:
        return [phase for phase, _, _ in self.events]


@pytest.fixture
def reported() -> Iterator[Reported]:
    reported = Reported()
    yield reported
    reported.taps.clear()


def point(number: int = 1) -> Point:
    return Break(number=number)


def hooks(module: nn.Module) -> list[Any]:
    """All that is in the tables of a module and its parts."""
    return [hook for each in module.modules() for name in TABLES for hook in getattr(each, name).values()]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


X = torch.zeros(1, 2)


def test_entry_and_exit_are_reported_with_their_points_and_values(reported: Reported) -> None:
    model, at = net(), point()
    reported.put(model, Phase.ENTER, Phase.EXIT, points=(at,))
    out = model(X)
    assert reported.events == [(Phase.ENTER, (at,), model), (Phase.EXIT, (at,), model)]
    assert reported.calls[0] == ((X,), {}, None)
    assert reported.calls[1][2] is out


class Keywords(nn.Module):
    def forward(self, x: torch.Tensor, *, scale: int = 1) -> torch.Tensor:
        return x * scale


def test_keyword_arguments_are_reported(reported: Reported) -> None:
    model = Keywords()
    reported.put(model, *PHASES, points=(point(),))
    model(X, scale=3)
    assert [kwargs for _, kwargs, _ in reported.calls] == [{"scale": 3}] * 2
    assert reported.entered == [(model, (X,), {"scale": 3})]


@pytest.mark.parametrize("listener", ["listening", "noting"])
def test_a_tap_without_points_reports_only_while_the_sink_listens(reported: Reported, listener: str) -> None:
    model = net()
    reported.put(model, Phase.ENTER, Phase.EXIT)
    model(X)
    assert reported.phases == []
    setattr(reported.sink, listener, True)
    model(X)
    assert reported.phases == [Phase.ENTER, Phase.EXIT]


def test_a_root_reports_its_entry_always(reported: Reported) -> None:
    model = net()
    reported.taps.apply_to([model], Phase.ENTER, Phase.EXIT)
    model(X)
    assert reported.phases == [Phase.ENTER]


def test_a_module_reports_its_entry_as_long_as_it_is_a_root(
    reported: Reported,
) -> None:
    model = net()
    reported.put(model, Phase.ENTER)
    model(X)
    assert reported.phases == []
    reported.taps.roots = {id(model)}
    reported.put(model, Phase.ENTER)
    model(X)
    assert reported.phases == [Phase.ENTER]
    reported.taps.roots = set()
    reported.put(model, Phase.ENTER)
    model(X)
    assert reported.phases == [Phase.ENTER]


def test_what_a_report_returns_takes_the_place_of_the_values(reported: Reported) -> None:
    model = nn.Identity()
    reported.put(model, Phase.EXIT, points=(point(),))
    reported.answer = "another output"
    assert model(X) == "another output"


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")


def test_an_exception_is_reported_and_goes_on(reported: Reported) -> None:
    model, at = Failing(), point()
    reported.put(model, Phase.RAISED, points=(at,))
    with pytest.raises(ValueError, match="no") as raised:
        model(X)
    assert reported.raised == [(raised.value, (at,))]


def test_taps_may_be_taken_off_while_an_exception_is_reported(reported: Reported) -> None:
    model = Failing()
    reported.put(model, *PHASES)
    reported.sink.raised = lambda error, points: reported.taps.clear()
    with pytest.raises(ValueError, match="no"):
        model(X)
    assert hooks(model) == []


def test_taps_may_be_taken_off_while_one_of_them_reports(reported: Reported) -> None:
    model = net()
    reported.put(model, Phase.ENTER, Phase.EXIT, points=(point(),))
    reported.then = reported.taps.clear
    model(X)
    assert reported.phases == [Phase.ENTER]
    assert hooks(model) == []


def test_clear_leaves_no_hook(reported: Reported) -> None:
    model = net()
    reported.taps.apply({id(each): (each, dict.fromkeys(PHASES, ())) for each in model.modules()})
    assert (reported.taps.modules, len(reported.taps)) == (3, 12)
    reported.taps.clear()
    assert hooks(model) == []
    assert (reported.taps.modules, len(reported.taps)) == (0, 0)
    reported.sink.listening = True
    model(X)
    assert reported.events == []


def test_the_next_plan_removes_what_it_does_not_want(reported: Reported) -> None:
    model = net()
    reported.put(model, *PHASES)
    reported.put(model, Phase.EXIT)
    assert len(model._forward_hooks) == 1 and not model._forward_pre_hooks
    reported.put(model[0], Phase.EXIT)
    assert not model._forward_hooks and len(model[0]._forward_hooks) == 1
    reported.taps.apply({})
    assert hooks(model) == []


def test_a_tap_that_is_right_already_stays_and_takes_the_new_points(reported: Reported) -> None:
    model, old, new = net(), point(1), point(2)
    reported.put(model, Phase.EXIT, points=(old,))
    before = hooks(model)
    reported.put(model, Phase.EXIT, points=(new,))
    assert hooks(model) == before
    model(X)
    assert reported.events == [(Phase.EXIT, (new,), model)]


def test_the_hooks_of_the_program_stay(reported: Reported) -> None:
    model = net()
    called: list[str] = []
    model.register_forward_hook(lambda *_: called.append("theirs"))
    before = hooks(model)
    reported.put(model, *PHASES)
    model(X)
    reported.taps.clear()
    model(X)
    assert called == ["theirs"] * 2
    assert hooks(model) == before


def saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), saved])
def test_copies_and_pickles_of_a_tapped_model_have_no_taps(
    reported: Reported, copied: Callable[[nn.Module], Any]
) -> None:
    model = net()
    reported.sink.listening = True
    reported.taps.apply({id(each): (each, dict.fromkeys(PHASES, ())) for each in model.modules()})
    other = copied(model)
    assert hooks(other) == []
    other(X)
    assert reported.events == []
    model(X)
    assert len(reported.events) == 6


def test_a_pickle_of_a_tapped_model_does_not_name_us(reported: Reported) -> None:
    model = net()
    reported.put(model, *PHASES)
    assert b"layerstep" not in pickle.dumps(model)


def test_a_tap_that_is_copied_by_itself_is_a_hook_that_does_nothing(reported: Reported) -> None:
    model, other = net(), net()
    reported.put(model, Phase.ENTER, points=(point(),))
    alone = copy.deepcopy(next(iter(model._forward_pre_hooks.values())))
    other.register_forward_pre_hook(alone)
    assert torch.equal(other(X), other[1](other[0](X)))
    assert reported.events == []


@pytest.mark.parametrize("phase", PHASES)
def test_a_tap_that_torch_puts_on_another_module_takes_itself_off(reported: Reported, phase: Phase) -> None:
    model, other = net(), net()
    reported.taps.roots = {id(model)}
    reported.put(model, phase, points=(point(),))
    # As quantization does: from one table into the other, without the word that it wants keywords.
    for key, hook in model._forward_pre_hooks.items():
        other._forward_pre_hooks[key] = hook
    for key, hook in model._forward_hooks.items():
        other._forward_hooks[key] = hook
    other(X)
    assert (reported.events, reported.entered) == ([], [])
    other(X)
    assert hooks(other) == []
    assert hooks(model) != []


def test_a_module_that_is_gone_is_no_hindrance(reported: Reported) -> None:
    model = net()
    reported.put(model, *PHASES)
    del model
    other = net()
    reported.put(other, Phase.EXIT, points=(point(),))
    other(X)
    assert reported.phases == [Phase.EXIT]
    reported.taps.clear()
    assert hooks(other) == []


def test_calls_are_watched_for_a_while() -> None:
    model = net()
    called: list[nn.Module] = []
    with watching_calls(called.append):
        model(X)
    model(X)
    assert called == [model, model[0], model[1]]


def test_the_output_of_one_module_is_watched_for_a_while() -> None:
    model = net()
    seen: list[torch.Tensor] = []
    with watching_output(model[0], seen.append):
        model(X)
    model(X)
    assert len(seen) == 1 and torch.equal(seen[0], model[0](X))
