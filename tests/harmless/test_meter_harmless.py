"""Measuring memory changes nothing, and what autograd is said to hold is what it holds, over the zoo."""

from __future__ import annotations

import contextlib
import copy
import io
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from layerstep import DebugConsole
from layerstep.engine.memory.meter import meter_of
from layerstep.engine.memory.step import MeasuredStep
from zoo import (
    ZOO,
    Entry,
    console_on,
    differences,
    entry_named,
    feeding,
    hook_count,
    loop,
    loss_of,
    play,
    seed,
)

CASES = [(entry, mode) for entry in ZOO for mode in entry.modes]
WITH_GRADIENTS = [(e, mode) for e, mode in CASES if mode not in ("frozen", "inference") and not e.compiled]
LINES = ("memory on", "leaks on")


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


@pytest.mark.parametrize("kind, mode", CASES, ids=lambda value: str(value))
def test_measuring_changes_nothing(kind: Entry, mode: str) -> None:
    bare = play(kind, mode, optimizer=sgd)
    under = play(kind, mode, LINES, optimizer=sgd)
    assert not under.seen.bugs, under.seen.text
    assert not differences(bare.state, under.state)
    assert hook_count(under.model) == hook_count(bare.model)
    assert not _get_current_dispatch_mode_stack()


def measured(kind: Entry, mode: str) -> MeasuredStep:
    """One step under the meter."""
    seed(0)
    model = kind.build()
    seed(1)
    console, seen = console_on(model, ["memory on"])
    with console:
        loop(kind, model, mode, 1, sgd)
    assert not seen.bugs, seen.text
    return meter_of(console.session).steps[-1]


def storages_by_reading(loss: Tensor) -> int:
    """What the graph holds, by the names that torch documents, each storage once."""
    sizes: dict[int, int] = {}

    def add(value: Any) -> None:
        for tensor in value if isinstance(value, tuple | list) else (value,):
            if isinstance(tensor, Tensor):
                sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()

    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [below for below, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_saved_") or name == "saved_tensors":
                add(getattr(node, name))
        if hasattr(node, "_autograd_function_id"):
            for value in vars(node).values():
                add(value)
    return sum(sizes.values())


def storages_by_hooks(run: Any) -> int:
    """What autograd packs and has not let go of, by its hooks; the 2 in `x * 2` passes them by."""
    packs: list[weakref.ref[_Packed]] = []

    def pack(tensor: Tensor) -> _Packed:
        packed = _Packed(tensor)
        packs.append(weakref.ref(packed))
        return packed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed.tensor):
        loss = run()
    alive = [packed.tensor for reference in packs if (packed := reference()) is not None]
    total = sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive}.values())
    del loss
    return total


class _Packed:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@contextlib.contextmanager
def forward_of(kind: Entry, mode: str) -> Iterator[Any]:
    seed(0)
    model = kind.build()
    seed(1)
    model.train(mode == "train")
    with feeding(kind, mode) as (args, kwargs):
        yield lambda: loss_of(model(*args, **kwargs))


@pytest.mark.parametrize("kind, mode", WITH_GRADIENTS, ids=lambda value: str(value))
def test_saved_bytes_are_what_autograd_holds(kind: Entry, mode: str) -> None:
    saved = measured(kind, mode).saved
    ours = saved.bytes + sum(saved.apart.values())
    if kind.name == "checkpoint":  # reading it would run it again; below it is compared with the other kind
        return
    with forward_of(kind, mode) as run:
        assert ours == storages_by_reading(run())


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_both_kinds_of_checkpointing_hold_the_same(mode: str) -> None:
    """One in nodes of its own, which can be read; the other behind its unpack hooks."""
    one, other = (measured(entry_named(name), mode).saved for name in ("checkpoint", "checkpoint_reentrant"))
    assert one.by_path == other.by_path and one.apart == other.apart
    assert one.bytes > 0


AGREE = [
    entry
    for entry in ZOO
    if entry.name not in ("compiled", "functional", "checkpoint", "checkpoint_reentrant")
]


@pytest.mark.parametrize("kind", AGREE, ids=str)
def test_hooks_of_torch_agree(kind: Entry) -> None:
    """They miss the numbers that Python code multiplies by, 8 bytes each, and nothing else.

    What they see and the graph does not show is said to be so: here the mask of a dropout in place on a view.
    """
    mode = "train" if "train" in kind.modes else "eval"
    if mode not in kind.modes:
        return
    saved = measured(kind, mode).saved
    with forward_of(kind, mode) as run:
        missed = saved.bytes + sum(saved.apart.values()) - storages_by_hooks(run)
    hidden = 2 * 6 * 4 if kind.name == "resnet" else 0
    assert not hidden or saved.closed == {"CopySlices": 1}
    assert 0 <= missed + hidden <= 8 * 8 and missed % 8 == 0


class Squares(torch.autograd.Function):
    """Looks for an attribute on what it saved, as fused kernels do, and keeps a tensor on its context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.mask = x > 0
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad * weight * weight.scale, (grad * x * ctx.mask).sum(0)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.weight.scale = 2.0
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            x = self.fc(x).tanh()
        x = Squares.apply(x, self.weight)
        return checkpoint(self.fc, x, use_reentrant=False)


def own(lines: tuple[str, ...]) -> tuple[list[Tensor], DebugConsole]:
    torch.manual_seed(0)
    model, console_lines = Own(), list(lines)
    console = DebugConsole(model, commands=console_lines, output=io.StringIO())
    with console:
        model(torch.randn(4, 6)).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()], console  # type: ignore[misc]


def test_the_hooks_and_functions_of_a_program_keep_working() -> None:
    bare, _ = own(())
    under, console = own(("memory on",))
    assert all(torch.equal(one, other) for one, other in zip(bare, under, strict=True))
    saved = meter_of(console.session).steps[-1].saved
    mask = 4 * 6  # bool
    assert saved.by_path["Own"] >= mask + 4 * 6 * 4
    assert not saved.closed


def test_a_tensor_that_was_written_after_it_was_saved_is_still_refused() -> None:
    model = nn.Linear(6, 6)
    with DebugConsole(model, commands=["memory on"], output=io.StringIO()):
        out = model(torch.randn(4, 6)).exp()
        out.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_transforms_of_torch_func_still_run() -> None:
    kind = entry_named("functional")
    assert measured(kind, "train").saved.nodes


def test_a_model_stays_copyable_and_what_ends_takes_everything_off() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    with (
        pytest.raises(KeyboardInterrupt),
        DebugConsole(model, commands=["memory on", "leaks on"], output=io.StringIO()),
    ):
        model(torch.randn(2, 6))
        copy.deepcopy(model)(torch.randn(2, 6))
        raise KeyboardInterrupt
    assert not _get_current_dispatch_mode_stack()
    assert not hook_count(model)


def test_nothing_is_installed_before_it_is_asked_for() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    with DebugConsole(model, commands=["memory", "leaks", "memory devices"], output=io.StringIO()) as console:
        model(torch.randn(2, 6))
        assert not hook_count(model) and not _get_current_dispatch_mode_stack()
        assert not console.session.training.before and not console.session.training.after


def test_memory_is_let_go_of() -> None:
    """The meter holds no tensor: what the program drops is freed while it measures."""
    model = nn.Linear(6, 6)
    with DebugConsole(model, commands=["memory on", "leaks on"], output=io.StringIO()):
        out = model(torch.randn(4, 6))
        gone = weakref.ref(out.untyped_storage())
        del out
        assert gone() is None
