"""Measuring memory changes nothing, and what autograd is said to hold is what it holds, over the zoo."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import _Holder, checkpoint

from layerstep import DebugConsole
from layerstep.memory.meter import meter_of
from layerstep.memory.step import MeasuredStep
from zoo import (
    ZOO,
    Entry,
    Seen,
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
WITH_GRADIENTS = [(entry, mode) for entry, mode in CASES if mode not in ("frozen", "inference")]
LINES = ("memory on", "leaks on")


pytestmark = pytest.mark.usefixtures("only_their_own")


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


class Births(TorchDispatchMode):
    """Every piece of memory that a kernel returned, by a weak reference: what is alive later is held."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: list[weakref.ref[Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_meta:
                with contextlib.suppress(Exception):  # inside of a transform there is none
                    self.storages.append(weakref.ref(tensor.untyped_storage()))
        return result

    @classmethod
    def ignore_compile_internals(cls) -> bool:  # else compiled code would run eagerly
        return True

    def alive(self) -> Sizes:
        found = (reference() for reference in self.storages)
        return {each.data_ptr(): each.nbytes() for each in found if each is not None and each.nbytes()}


Sizes = dict[int, int]
"""Bytes by the address of a piece of memory."""


def sizes_of(values: Any) -> Sizes:
    storages = [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    return {each.data_ptr(): each.nbytes() for each in storages if each.nbytes()}


def read_graph(root: Any) -> Sizes:
    """What the nodes show by the names that torch documents; checkpointed ones would run again."""
    found: Sizes = {}
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [below for below, _ in node.next_functions]
        for name in (name for name in dir(node) if name.startswith("_saved_")):
            raw = getattr(node, f"_raw{name}", None)
            if not isinstance(getattr(raw, "data", None), _Holder):
                found |= sizes_of(getattr(node, name))
        if hasattr(node, "_autograd_function_id"):
            found |= sizes_of([node.saved_tensors, *vars(node).values()])
    return found


@dataclass(frozen=True)
class Truth:
    """What a graph holds, found out without layerstep."""

    shown: Sizes
    """By its nodes; the numbers in `x * 0.5` are here only."""
    born: Sizes
    """In the forward, and alive while nothing but the graph is: also what no node shows."""
    owned: Sizes
    """Parameters, buffers, inputs."""

    @property
    def activations(self) -> int:
        return sum(size for at, size in (self.shown | self.born).items() if at not in self.owned)


def truth_of(kind: Entry, mode: str) -> Truth:
    """Forward with nothing on it but the births; then everything is dropped but the graph."""
    seed(0)
    model = kind.build()
    seed(1)
    model.train(mode == "train")
    births = Births()
    with feeding(kind, mode) as (args, kwargs), births:
        root = loss_of(model(*args, **kwargs)).grad_fn
    gc.collect()
    owned = sizes_of([list(model.parameters()), list(model.buffers()), args, kwargs])
    truth = Truth(read_graph(root), births.alive(), owned)
    del root
    gc.collect()
    left = {at for at in births.alive() if at not in owned}
    assert not left, "it was not the graph that held it"
    return truth


RANDOM_STATES = {"checkpoint": 2}
"""Taken by each of its blocks without a kernel, and kept behind hooks: nothing but layerstep shows them."""


@pytest.mark.parametrize("kind, mode", WITH_GRADIENTS, ids=lambda value: str(value))
def test_saved_bytes_are_what_autograd_holds(kind: Entry, mode: str) -> None:
    saved, truth = measured(kind, mode).saved, truth_of(kind, mode)
    states = RANDOM_STATES.get(kind.name, 0) * torch.get_rng_state().nbytes
    assert saved.bytes == truth.activations + states
    assert not saved.opaque and not saved.is_cut
    if not kind.recomputes:
        held = [size for at, size in truth.shown.items() if at in truth.owned]
        assert sum(saved.apart.values()) == sum(held)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_both_kinds_of_checkpointing_hold_the_same(mode: str) -> None:
    """One in nodes of its own, which can be read; the other behind its unpack hooks."""
    one, other = (measured(entry_named(name), mode).saved for name in ("checkpoint", "checkpoint_reentrant"))
    assert one.by_path == other.by_path and one.apart == other.apart
    assert one.bytes > 0


VIEWS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a mask": lambda view, other: view.mul_(other.detach() > 0),
    "both factors": lambda view, other: view.mul_(other * 2),
    "a number": lambda view, other: view.mul_(2.5),
    "its result": lambda view, other: view.exp_(),
    "a copy of itself": lambda view, other: view.pow_(2),
    "an index": lambda view, other: view.index_put_((torch.tensor([1, 2]),), torch.zeros(2)),
    "nothing": lambda view, other: view.copy_(other * 2),
    "nothing, at random": lambda view, other: view.normal_(),
    "twice": lambda view, other: view.mul_(other.detach().abs()).exp_(),
}


class WritesView(nn.Module):
    def __init__(self, write: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.write = write
        self.other = nn.Parameter(torch.linspace(-1, 1, 24))

    def forward(self, x: Tensor) -> Tensor:
        base = x * self.other.view(4, 6)
        self.write(base.view(24), self.other)
        return base


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_that_is_written_in_place_hides_nothing(name: str) -> None:
    kind = Entry(
        f"writes {name}", lambda: WritesView(VIEWS[name]), lambda: ((torch.randn(4, 6),), {}), "", ""
    )
    bare, under = play(kind, "train"), play(kind, "train", LINES)
    assert not differences(bare.state, under.state)
    saved = measured(kind, "train").saved
    unseen = 8 if name == "a number" else 0  # inside of the hidden node, and no kernel returned it
    assert saved.bytes == truth_of(kind, "train").activations + unseen
    assert not saved.opaque


class Breaking(nn.Module):
    """Compiled in parts: between them operations run eagerly, before the eyes of dynamo."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        torch._dynamo.graph_break()
        return self.last(nn.functional.dropout(x.tanh(), 0.5))


def in_place(model: nn.Module, **options: Any) -> nn.Module:
    model.compile(**options)
    return model


@pytest.mark.filterwarnings("ignore")  # dynamo's own
@pytest.mark.parametrize("compiling", [torch.compile, in_place])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models_are_measured(compiling: Callable[..., nn.Module], backend: str) -> None:
    kind = Entry(
        "breaking", lambda: compiling(Breaking(), backend=backend), lambda: ((torch.randn(4, 6),), {}), "", ""
    )
    graphs = []
    for lines in (None, LINES):
        torch._dynamo.reset()
        counters.clear()
        graphs.append((play(kind, "train", lines, optimizer=sgd), counters["stats"]["unique_graphs"]))
    (bare, alone), (under, beside) = graphs
    assert not under.seen.bugs and not differences(bare.state, under.state)
    assert alone == beside > 1, "nothing is compiled on our account"
    saved, truth = measured(kind, "train").saved, truth_of(kind, "train")
    held = truth.shown | truth.born
    assert saved.bytes + sum(saved.apart.values()) == sum(held.values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("line", [pytest.param("memory on", marks=pytest.mark.long), "memory 2"])
def test_a_training_step_that_is_compiled_as_a_whole(line: str) -> None:
    """The optimizer's hooks run inside of compiled code, which puts dispatch keys back at its end."""

    def train(lines: list[str]) -> tuple[list[Tensor], DebugConsole, Seen]:
        torch._dynamo.reset()
        seed(0)
        model = Breaking()
        optimizer = sgd(model.parameters())

        @torch.compile(backend="aot_eager")
        def step(x: Tensor) -> Tensor:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        console, seen = console_on(model, lines)
        with console if lines else contextlib.nullcontext():
            losses = [step(torch.randn(4, 6)).detach() for _ in range(4)]
        return losses, console, seen

    bare, _, _ = train([])
    under, console, seen = train([line])
    assert not seen.bugs, seen.text
    assert not differences(bare, under)
    assert not _get_current_dispatch_mode_stack()
    assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0)), "no key is left on without a mode"
    steps = meter_of(console.session).steps
    assert len(steps) == (2 if line == "memory 2" else 4) and all(step.saved.bytes for step in steps)


@pytest.mark.parametrize("is_outside", [True, False])
def test_measuring_may_end_inside_of_inference_mode(is_outside: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    console, seen = console_on(model, ["memory 2"] if is_outside else [])
    with console:
        with torch.inference_mode():
            if not is_outside:
                console.execute("memory 2")
            for _ in range(5):
                model(torch.randn(2, 6))
        torch.ones(2).sum()
        assert not _get_current_dispatch_mode_stack()
    assert len(meter_of(console.session).steps) == 2 and not seen.bugs
    assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))


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
    assert not saved.opaque


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
        assert not console.session.run.training.before and not console.session.run.training.after


def test_memory_is_let_go_of() -> None:
    """The meter holds no tensor: what the program drops is freed while it measures."""
    model = nn.Linear(6, 6)
    with DebugConsole(model, commands=["memory on", "leaks on"], output=io.StringIO()):
        out = model(torch.randn(4, 6))
        gone = weakref.ref(out.untyped_storage())
        del out
        assert gone() is None
