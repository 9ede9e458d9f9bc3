"""`catch exception` over the whole zoo, never hit, and models of it that crash: nothing is disturbed."""

from __future__ import annotations

import functools

import pytest
from torch import nn
from torch.overrides import _get_current_function_mode_stack

from zoo import ZOO, Entry, Run, console_on, differences, entry_named, hook_count, loop, play, seed, taps_on

CASES = [pytest.param(entry, entry.modes[0], id=str(entry)) for entry in ZOO]


@functools.cache
def bare(name: str, mode: str) -> Run:
    return play(entry_named(name), mode)


@pytest.mark.parametrize("entry, mode", CASES)
def test_a_run_under_catch_exception_is_the_same(entry: Entry, mode: str) -> None:
    expected = bare(entry.name, mode)
    modes = len(_get_current_function_mode_stack())
    run = play(entry, mode, ["catch exception", "catch exception in **", "continue"])
    assert differences(expected.state, run.state) == []
    assert run.seen.bugs == [] and not run.seen.stops
    assert not taps_on(run.model)
    assert hook_count(run.model) == hook_count(expected.model)
    assert len(_get_current_function_mode_stack()) == modes


class Boom(Exception):
    """Raised by a layer on purpose."""


@pytest.mark.parametrize("entry, mode", CASES)
def test_a_crash_leaves_nothing_and_is_the_users_own(entry: Entry, mode: str) -> None:
    seed(0)
    model = entry.build()
    before = hook_count(model)
    console, seen = console_on(
        model, ["catch exception in **", "continue", "where", "up", "list", "continue"]
    )
    mine = Boom("on purpose")

    def fail(module: nn.Module, args: object) -> None:
        raise mine

    called = [part for part in model.modules() if not isinstance(part, nn.ModuleList | nn.ModuleDict)]
    handle = nn.Module.register_forward_pre_hook(called[-1], fail)
    try:
        with console:
            loop(entry, model, mode)
    except Boom as error:
        assert error is mine and error.args == ("on purpose",)
        assert seen.stops or len(getattr(error, "__notes__", ())) == 1
    except Exception as error:  # the compiler wraps what a hook raises
        assert mine in _behind(error) or "on purpose" in str(error)
    finally:
        handle.remove()
    assert seen.bugs == []
    assert not taps_on(model)
    assert hook_count(model) == before or entry.lazy  # one that is lazy takes its own hooks off
    assert not [each for each in _get_current_function_mode_stack() if type(each).__name__ == "Ledger"]


def _behind(error: BaseException) -> list[BaseException]:
    found = [error]
    while (inner := found[-1].__cause__ or found[-1].__context__) is not None and inner not in found:
        found.append(inner)
    return found
