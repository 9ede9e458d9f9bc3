"""The module stack: rebuilt from the frames that run, for nested, shared, wrapped and recursive modules."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from layerstep.calls.events import Event, Phase
from layerstep.calls.stack import Frame, build_stack, call_depth
from layerstep.module_paths.models import Models
from layerstep.process.frames import (
    call_text,
    caller_of,
    forget_locals,
    function_label,
    is_library_file,
    is_ours,
    is_program_file,
)

X = torch.zeros(1, 2)


class Probe(nn.Module):
    """Calls a function with the frame of its own forward, while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))  # a module without parameters is no model of its own
        self.seen: list[Any] = []
        self.look: Callable[[FrameType], Any] = lambda frame: None

    def forward(self, x: Tensor, *rest: Any, **named: Any) -> Tensor:
        self.seen.append(self.look(sys._getframe()))
        return x


def stacks_in(model: nn.Module, *probes: Probe, args: tuple[Any, ...] = (X,)) -> list[list[Frame]]:
    """The stack at each call of a probe, innermost first; paths and depth are found while it runs."""
    models = Models()
    models.add(model, "net")
    stacks: list[list[Frame]] = []

    def look(frame: FrameType) -> None:
        stack = build_stack(frame, models, event=None)
        assert len(stack) == call_depth(frame)
        assert all(each.path for each in stack)
        stacks.append(stack)

    for probe in probes:
        probe.look = look
    model(*args)
    return stacks


def paths(stack: list[Frame]) -> list[str]:
    return [frame.path for frame in stack]


class Block(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, *, scale: int = 1) -> Tensor:
        return self.inner(x * scale)


def test_without_a_running_module_the_stack_is_empty() -> None:
    frame = sys._getframe()
    assert build_stack(frame, Models(), event=None) == []
    assert build_stack(None, Models(), event=None) == []
    assert call_depth(frame) == call_depth(None) == 0


def test_nested_calls_are_on_the_stack_innermost_first() -> None:
    probe = Probe()
    (stack,) = stacks_in(nn.Sequential(nn.Linear(2, 2), Block(probe)), probe)
    assert paths(stack) == ["1.inner", "1", "net"]
    assert [frame.depth for frame in stack] == [3, 2, 1]
    assert [frame.state for frame in stack] == ["running"] * 3
    assert stack[0].module is probe


def test_a_call_has_its_arguments_and_the_line_that_made_it() -> None:
    probe = Probe()
    model = Block(probe)
    models = Models()
    models.add(model, "net")
    probe.look = lambda frame: [
        (each.inp, each.kwargs, each.location.partition("  ")[2])
        for each in build_stack(frame, models, event=None)
    ]
    model(X, scale=3)
    (inner, outer) = probe.seen[0]
    assert inner[1:] == ({}, "return self.inner(x * scale)")
    assert outer == (X, {"scale": 3}, "model(X, scale=3)")


def test_several_inputs_are_a_tuple() -> None:
    probe = Probe()
    (stack,) = stacks_in(probe, probe, args=(X, 1))
    assert stack[0].inp == (X, 1)


class Shared(nn.Module):
    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.first = self.second = probe

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x))
        for each in self.children():
            x = each(x)
        return x


def test_a_shared_module_has_the_path_by_which_it_was_called_or_both() -> None:
    probe = Probe()
    stacks = stacks_in(Shared(probe), probe)
    assert [paths(stack) for stack in stacks] == [
        ["first", "net"],
        ["second", "net"],
        ["first|second", "net"],
    ]


class Down(nn.Module):
    """Calls itself so many times, then its probe."""

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.probe = probe

    def forward(self, x: Tensor, times: int) -> Tensor:
        return self(x, times - 1) if times else self.probe(x)


@given(st.integers(0, 6))
def test_a_module_that_calls_itself_is_on_the_stack_once_for_each_call(times: int) -> None:
    probe = Probe()
    (stack,) = stacks_in(Down(probe), probe, args=(X, times))
    assert paths(stack) == ["probe"] + ["net"] * (times + 1)
    assert [frame.depth for frame in stack] == list(range(times + 2, 0, -1))
    assert [frame.args[1] for frame in stack[1:]] == list(range(times + 1))


Shape = list["Shape"]
shapes = st.recursive(st.just([]), lambda children: st.lists(children, min_size=1, max_size=3), max_leaves=8)


@settings(max_examples=50)
@given(shapes)
def test_the_stack_of_any_tree_is_the_path_to_its_module(shape: Shape) -> None:
    probes: list[Probe] = []

    def built(shape: Shape) -> nn.Module:
        if shape:
            return nn.Sequential(*map(built, shape))
        probes.append(Probe())
        return probes[-1]

    model = nn.Sequential(built(shape))
    where = {id(module): path for path, module in model.named_modules()}
    stacks = stacks_in(model, *probes)
    assert len(stacks) == len(probes)
    for stack, probe in zip(stacks, probes, strict=True):
        segments = where[id(probe)].split(".")
        around = [".".join(segments[:length]) for length in range(len(segments), 0, -1)]
        assert paths(stack) == [*around, "net"]


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend="eager")  # type: ignore[return-value]


class OwnParallel(nn.DataParallel[Any]):
    """A class of the program that derives from a wrapper wraps, too."""


@pytest.mark.parametrize("wrap", [nn.DataParallel, OwnParallel, compiled])
def test_a_module_that_only_wraps_another_is_not_on_the_stack(wrap: Callable[[nn.Module], nn.Module]) -> None:
    probe = Probe()
    with torch.compiler.set_stance("force_eager"):
        (stack,) = stacks_in(wrap(nn.Sequential(wrap(Block(probe)))), probe)
    assert paths(stack) == ["0.inner", "0", "net"]
    assert [type(frame.module) for frame in stack] == [Probe, Block, nn.Sequential]
    assert [frame.depth for frame in stack] == [3, 2, 1]


def event_stack(phase: Phase) -> list[Frame]:
    model = nn.Sequential(Block(nn.Linear(2, 2)))
    models = Models()
    models.add(model, "net")
    stacks = []

    def hook(module: nn.Module, args: Any, kwargs: Any, *output: Any) -> None:
        event = Event(phase, module, args, {**kwargs, "named": 1}, *output)
        frame = sys._getframe(1)
        stacks.append(build_stack(frame, models, event=event))
        assert len(stacks[-1]) == call_depth(frame)

    inner = model[0].inner
    if phase is Phase.ENTER:
        inner.register_forward_pre_hook(hook, with_kwargs=True)
    else:
        inner.register_forward_hook(hook, with_kwargs=True)
    model(X)
    return stacks[0]


def test_the_module_of_an_event_leads_as_it_enters() -> None:
    inner, *around = event_stack(Phase.ENTER)
    assert (inner.path, inner.state, inner.has_output) == ("0.inner", "entering", False)
    assert inner.kwargs == {"named": 1}
    assert [(frame.path, frame.state) for frame in around] == [("0", "running"), ("net", "running")]


def test_the_module_of_an_event_leads_with_its_output_as_it_is_done() -> None:
    inner, *around = event_stack(Phase.EXIT)
    assert (inner.path, inner.state) == ("0.inner", "done")
    assert torch.equal(inner.output, inner.module(inner.inp))  # type: ignore[misc]
    assert not any(frame.has_output for frame in around)


def test_a_call_that_began_without_hooks_is_known() -> None:
    probe = Probe()
    model = nn.Sequential(Block(probe))
    model[0].register_forward_hook(lambda *_: None)
    (stack,) = stacks_in(model, probe)
    assert [(frame.path, frame.hooked) for frame in stack] == [
        ("0.inner", False),
        ("0", True),
        ("net", False),
    ]


def test_a_second_run_inside_of_a_run_is_told_apart() -> None:
    probe = Probe()
    models, other = Models(), nn.Sequential(probe)
    models.add(other, "other")

    class Outer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            here = sys._getframe()
            probe.look = lambda frame: paths(build_stack(frame, models, event=None, until=here))
            return other(x)

    Outer()(X)
    assert probe.seen == [["0", "other"]]


def test_a_module_of_no_known_model_is_shown_by_its_class() -> None:
    probe = Probe()
    probe.look = lambda frame: paths(build_stack(frame, Models(), event=None))
    Block(probe)(X)
    assert probe.seen == [["<Probe>", "<Block>"]]


class Calling(nn.Module):
    """Has a `__call__` of its own that hands on to torch's."""

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.probe = probe

    def __call__(self, *args: Any) -> Any:
        return super().__call__(*args)

    def forward(self, x: Tensor) -> Tensor:
        return self.probe(x)


def test_the_caller_of_a_module_is_the_code_that_called_it_and_no_call_between() -> None:
    probe = Probe()
    model = Calling(probe)
    probe.look = lambda frame: [
        each.caller.f_code.co_name
        for each in build_stack(frame, Models(), event=None)
        if each.caller is not None
    ]
    model(X)
    here = sys._getframe().f_code.co_name
    assert probe.seen == [["forward", here]]
    assert caller_of(sys._getframe()) is sys._getframe().f_back


def test_the_text_of_a_call_is_what_stands_there() -> None:
    probe = Probe()
    probe.look = lambda frame: [
        call_text(each.caller) for each in build_stack(frame, Models(), event=None) if each.caller is not None
    ]
    _ = (1, Block(probe)(X, scale=2), 3)
    assert probe.seen == [["self.inner(x * scale)", "Block(probe)(X, scale=2)"]]


def test_functions_are_called_by_their_names() -> None:
    class Net:
        def forward(self) -> str:
            return function_label(sys._getframe())

    assert Net().forward().endswith("Net.forward()")
    assert function_label(sys._getframe()) == "test_functions_are_called_by_their_names()"


def test_files_of_libraries_and_of_ours_are_not_the_programs() -> None:
    assert is_program_file(__file__)
    assert is_program_file("<stdin>")
    assert not is_program_file("")
    assert not is_program_file("<string>")
    assert not is_program_file(torch.__file__)
    assert not is_program_file(contextlib.__file__)
    assert not is_program_file(pytest.__file__)
    assert not is_program_file(sys.modules[Frame.__module__].__file__ or "")
    assert not is_ours(sys._getframe())


def test_what_was_looked_at_in_a_frame_is_let_go() -> None:
    import weakref

    def function() -> tuple[Any, FrameType]:
        value = nn.Identity()
        frame = sys._getframe()
        assert frame.f_locals["value"] is value
        reference = weakref.ref(value)
        del value
        forget_locals(frame)
        return reference(), frame

    assert function()[0] is None


def test_the_locals_that_a_function_holds_itself_stay() -> None:
    def function() -> dict[str, Any]:
        value = 1
        held = locals()
        forget_locals(sys._getframe())
        return held if value else {}

    assert function()["value"] == 1


def test_a_package_is_a_library_wherever_it_is_installed() -> None:
    """An environment may take its packages from another one, as with `--system-site-packages`."""
    assert is_library_file("/opt/other/lib/python3.11/site-packages/torch/nn/modules/module.py")
    assert is_library_file("/usr/lib/python3/dist-packages/numpy/__init__.py")
    assert is_library_file(contextlib.__file__) and not is_library_file("/home/me/my-site-packages.py")
