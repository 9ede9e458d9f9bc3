"""FLOPs: those of torch's own counter, by module, forward and backward, without a trace in the run."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from layerstep import DebugConsole
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.profile.flop_formulas import FORMULAS
from layerstep.profile.flops import Flops, count_flops
from layerstep.render.screen import to_text
from zoo import ZOO, Entry, console_on, feeding, seed, tensors_of

TRANSFORMED = ("functional",)
"""Calls its parts under torch.func: what they get is of no use outside, and a backward is in the forward."""
PLAIN = [kind for kind in ZOO if kind.name not in TRANSFORMED]


@contextmanager
def counted(kind: Entry) -> Iterator[tuple[nn.Module, tuple[Any, ...], dict[str, Any], Session, Flops]]:
    """A model of a kind and what it is called with; a session on it, and our count of the call."""
    seed(0)
    model = kind.build().eval()
    if hasattr(model, "config"):
        model.config.use_cache = False  # a cache that a call has written cannot be given to another
    with feeding(kind, "eval") as (args, kwargs), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the global hooks of torch's counter, on a compiled model
        model(*args, **kwargs)  # lazy layers have no parameters before
        console, seen = console_on(model, [])
        seed(1)
        found = count_flops(console.session, model, args=args, kwargs=kwargs, backward=True)
        assert not seen.bugs
        yield model, args, kwargs, console.session, found


def _mapping() -> dict[Any, Any]:
    """Our formulas for what torch has none for, as its counter takes them."""
    ours = {packet: formula for packet, formula in FORMULAS.items() if packet not in flop_registry}
    for formula in ours.values():
        formula._get_raw = True  # type: ignore[attr-defined]
    return ours


def run_both_ways(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """What torch's counter counts in a forward, and in that and its backward."""
    seed(1)
    with FlopCounterMode(display=False, custom_mapping=_mapping()) as counter:
        ends = [tensor for tensor in tensors_of(module(*args, **kwargs)) if tensor.requires_grad]
        forward = counter.get_total_flops()
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    return forward, counter.get_total_flops()


@pytest.mark.parametrize("kind", ZOO, ids=str)
def test_the_sum_is_that_of_torchs_counter(kind: Entry) -> None:
    with counted(kind) as (model, args, kwargs, _, found):
        gradients = [tensor.grad for tensor in (*model.parameters(), *tensors_of((args, kwargs)))]
        assert gradients == [None] * len(gradients), "a count must add to no gradient"
        forward, both = run_both_ways(model, args, kwargs)
        assert found.total == both > 0
        assert found.forward.total() == forward or kind not in PLAIN


@pytest.mark.parametrize("kind", PLAIN, ids=str)
def test_each_module_has_what_torchs_counter_counts_of_it_alone(kind: Entry) -> None:
    """Torch's own table by module is no measure: it charges a backward to whoever last had a hook."""
    with counted(kind) as (model, args, kwargs, session, found):
        expected: Counter[str] = Counter()
        for module, given, named, autocast in calls_in(model, args, kwargs):
            path = session.run.models.path_of(module)
            with torch.autocast("cpu", enabled=autocast):
                forward, both = run_both_ways(module, again(given), again(named))
            expected[path] += both + (forward if kind.recomputes and module is not model else 0)
        root = session.run.models.main.name  # type: ignore[union-attr]
        paths = [path for path in expected if not path.startswith("<")]  # compiled, parallel: a cover of one
        every = found.forward + found.backward
        ours = {path: sum(n for own, n in every.items() if is_in(own, path, root)) for path in paths}
        assert ours == {path: expected[path] for path in paths}
        assert len(paths) > 1


def is_in(own: str, path: str, root: str) -> bool:
    """Is a module, with all names that it has, inside of another?"""
    return path == root or any(f"{name}.".startswith(f"{path.partition('|')[0]}.") for name in own.split("|"))


def calls_in(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Every call of a forward, with what it was given; of one inside of a call of the same, the outer."""
    calls: list[Any] = []
    running: list[nn.Module] = []

    def enter(module: nn.Module, given: Any, named: Any) -> None:
        if module not in running:
            is_first = not torch.is_grad_enabled()  # of a reentrant checkpoint: its second run has gradients
            with torch.enable_grad():
                given, named = again(given, needs=is_first), again(named, needs=is_first)
            calls.append((module, given, named, torch.is_autocast_enabled("cpu")))
        running.append(module)

    def leave(module: nn.Module, given: Any, output: Any) -> None:
        running.pop()

    handles = [
        handle
        for module in getattr(model, "_orig_mod", model).modules()  # compiled, it would trace the hooks
        for handle in (
            nn.Module.register_forward_pre_hook(module, enter, with_kwargs=True),
            nn.Module.register_forward_hook(module, leave),
        )
    ]
    seed(1)
    getattr(model, "_orig_mod", model)(*args, **kwargs)
    for handle in handles:
        handle.remove()
    return calls


def again(value: Any, *, needs: bool = False) -> Any:
    """The same tensors with a history of their own, and no leaves: layers may write into them."""
    if isinstance(value, Tensor):
        needs = value.requires_grad or (needs and value.is_floating_point())
        return value.detach().requires_grad_(needs).clone()
    if type(value) in (tuple, list):
        return type(value)(again(item, needs=needs) for item in value)
    return {k: again(item, needs=needs) for k, item in value.items()} if type(value) is dict else value


def test_each_module_has_its_own() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    console, _ = console_on(model, [])
    x = torch.randn(4, 6)
    found = count_flops(console.session, model, args=(x,), kwargs={}, backward=True)
    assert found.forward == {"0": 2 * 4 * 6 * 8, "2": 2 * 4 * 8 * 3}
    assert found.backward["0"] == found.forward["0"], "the input needs no gradient"
    assert found.backward["2"] == 2 * found.forward["2"]
    assert not found.uncounted


class Fourier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(self.fc(x)).abs().cumsum(-1).sort().values.relu()


def test_what_has_no_formula_is_listed() -> None:
    model = Fourier()
    console, _ = console_on(model, [])
    found = count_flops(console.session, model, args=(torch.randn(2, 8),), kwargs={}, backward=False)
    names = {name for path, name in found.uncounted if path == "Fourier"}
    assert {"_fft_r2c", "cumsum", "sort"} <= names
    assert not {"relu", "abs", "t", "view"} & names
    assert set(found.uncounted) == {("Fourier", name) for name in names}, "none of them is in `fc`"
    assert not found.has_backward and not found.backward


def test_the_screen_at_a_stop() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    lines = ["break 1", "continue", "flops", "flops 0", "perturbed?", "continue"]
    output = io.StringIO()
    fired = []
    model[0].weight.register_hook(lambda gradient: fired.append(gradient))
    with DebugConsole(model, commands=lines, output=output):
        state = torch.get_rng_state()
        model(torch.randn(4, 6).requires_grad_()).sum()
    text = output.getvalue()
    assert "all of 0" in text and "a multiply and an add count as two" in text
    assert "untouched" in text and not fired
    torch.set_rng_state(state)


def test_without_gradients_only_the_forward_counts() -> None:
    model = nn.Sequential(nn.Linear(6, 8))
    output = io.StringIO()
    with (
        DebugConsole(model, commands=["break 0", "continue", "flops", "continue"], output=output),
        torch.no_grad(),
    ):
        model(torch.randn(4, 6))
    assert "forward only" in output.getvalue()


def test_outside_of_a_call_it_says_what_to_do() -> None:
    console = DebugConsole(nn.Linear(2, 2), output=io.StringIO())
    assert "no call of a model is running here" in to_text(console.execute("flops"))  # type: ignore[arg-type]


class Strays(nn.Module):
    """A reentrant checkpoint, and a weight that nobody has registered."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.stray = [torch.ones(6, requires_grad=True)]

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.fc, x * self.stray[0], use_reentrant=True)  # type: ignore[no-any-return]


def test_what_would_leave_a_gradient_outside_says_so() -> None:
    model = Strays()
    console, _ = console_on(model, [])
    x = torch.randn(4, 6)
    with pytest.raises(UserError, match="outside the model"):
        count_flops(console.session, model, args=(x,), kwargs={}, backward=True)
    assert model.stray[0].grad is None
    found = count_flops(console.session, model, args=(x,), kwargs={}, backward=False)
    assert found.forward == {"fc": 2 * 4 * 6 * 6}


class Fickle(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("not twice")


def test_what_cannot_run_again_says_so() -> None:
    model = Fickle(2, 2)
    console, _ = console_on(model, [])
    with pytest.raises(UserError, match="Fickle cannot be rerun: not twice"):
        count_flops(console.session, model, args=(torch.ones(1, 2),), kwargs={}, backward=True)
