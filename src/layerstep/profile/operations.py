"""The operations of one forward, seen in a rerun on copies.

It counts by line and by module: calls, floating-point operations, bytes, waits for a device, and the
operations that make up attention. A clock on modules cannot tell these.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from layerstep._torch import unwrap
from layerstep._torch.operators import packet_of
from layerstep._torch.tensors import is_tensor
from layerstep.calls.operations import Kernels, Place, is_question, name_of, place_of, plain_name
from layerstep.errors import UserError
from layerstep.profile import machine
from layerstep.profile.saved_memory import Needed
from layerstep.profile.timed_modules import is_whole
from layerstep.rerun.kv_caches import CallProgress
from layerstep.rerun.module_call import Watcher, rerun
from layerstep.tensors.autograd_graph import inner_tensors
from layerstep.tensors.observing import observing

if TYPE_CHECKING:
    from layerstep.engine.session import Session
    from layerstep.profile.profiling import Profile

__all__ = ["AttentionOps", "Grown", "LineOps", "OpCounts", "count_ops"]

SYNCS = frozenset(["item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "nonzero", "bool"])
_CONVERSIONS = frozenset(["__bool__", "__int__", "__float__", "__index__"])
"""`if tensor:` and `int(tensor)`: the value must come to the host."""
GROWTH = 8
"""An output that is so many times as large as the largest operand counts as grown."""
GROWN_BYTES = 1 << 16
MOST_ELEMENTS = 1 << 22
"""Larger outputs are not searched for subnormal values."""
FEWEST_ELEMENTS = 256


@dataclass(slots=True)
class LineOps:
    """The operations of one line in one module."""

    key: int
    place: Place
    calls: int = 0
    seconds: float = 0.0
    names: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class AttentionOps:
    """Attention as separate operations: scores, softmax, product."""

    key: int
    place: Place
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grown:
    """An operation whose output is far larger than its operands."""

    key: int
    place: Place
    name: str
    shape: tuple[int, ...]
    operand: tuple[int, ...]
    nbytes: int
    ratio: float


@dataclass(slots=True)
class OpCounts:
    """The operations of one forward, counted."""

    lines: dict[tuple[int, Place], LineOps] = field(default_factory=dict)
    syncs: dict[tuple[int, Place, str], tuple[int, float]] = field(default_factory=dict)
    """Calls that bring a value to the host, and the seconds they took."""
    attention: list[AttentionOps] = field(default_factory=list)
    grown: list[Grown] = field(default_factory=list)
    flops: Counter[int] = field(default_factory=Counter)
    """FLOP by the key of the module whose own code ran them."""
    moved: Counter[int] = field(default_factory=Counter)
    """Bytes of the operands and results of those operations."""
    precisions: Counter[str] = field(default_factory=Counter)
    """FLOP by the dtype of their results."""
    needed: Counter[int] = field(default_factory=Counter)
    """The most bytes that were alive in a call, beyond what was there before it."""
    saved: Counter[int] = field(default_factory=Counter)
    """Bytes that a module itself keeps for the backward, in the run's own call."""
    subnormal: Counter[int] = field(default_factory=Counter)
    searched: Counter[int] = field(default_factory=Counter)
    entered: Counter[int] = field(default_factory=Counter)
    """Calls of each module."""
    trouble: str = ""
    """Why nothing was counted."""

    def add(self, other: OpCounts) -> None:
        """Add the counts of another model."""
        self.lines |= other.lines
        self.syncs |= other.syncs
        self.attention += other.attention
        self.grown += other.grown
        for name in ("flops", "moved", "precisions", "needed", "saved", "subnormal", "searched", "entered"):
            getattr(self, name).update(getattr(other, name))
        self.trouble = self.trouble or other.trouble

    @property
    def calls(self) -> int:
        return sum(line.calls for line in self.lines.values())

    @property
    def seconds(self) -> float:
        return sum(line.seconds for line in self.lines.values())


def count_ops(
    session: Session, profile: Profile, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> OpCounts:
    """Rerun a model on copies of its arguments, and count its operations."""
    if any(map(is_whole, module.modules())):
        return OpCounts(trouble=f"{session.run.models.path_of(unwrap(module))} is compiled, and is not rerun")
    watcher = _Inspection()
    profile.clock.inspect = watcher
    try:
        rerun(session, module, args=args, kwargs=kwargs, progress=CallProgress.AFTER, watcher=watcher)
    except UserError as error:
        watcher.looked = OpCounts(trouble=str(error))
    finally:
        profile.clock.inspect = None
        watcher.settle()
    return watcher.looked


class _Inspection(Watcher):
    """A function mode with a dispatch mode below it."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = OpCounts()
        self._stack: list[int] = []
        self._kernels = Kernels(self._kernel)
        self._needed = Needed()
        self.looked.needed = self._needed.most
        self._scores: dict[int, tuple[int, ...]] = {}
        self._weights: dict[int, tuple[Place, tuple[int, ...]]] = {}
        self._depth = 0

    def __enter__(self) -> Any:
        self._kernels.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._kernels.__exit__(*error)

    def enter(self, key: int) -> None:
        self._stack.append(key)
        self.looked.entered[key] += 1
        self._needed.enter(key)

    def leave(self) -> None:
        self._stack.pop()
        self._needed.leave()

    @property
    def _key(self) -> int:
        return self._stack[-1] if self._stack else -1

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if (is_question(func) and name not in _CONVERSIONS) or self._depth:
            return super().see(func, args, kwargs)
        self._depth += 1
        begin = machine.now()
        try:
            result = super().see(func, args, kwargs)
        finally:
            self._depth -= 1
        spent = machine.now() - begin
        place = place_of(sys._getframe(1))
        line = self.looked.lines.setdefault((self._key, place), LineOps(self._key, place))
        line.calls += 1
        line.seconds += spent
        line.names[name_of(func)] += 1
        if name in SYNCS and _waits(name, args):
            at = (self._key, place, name.strip("_"))
            calls, seconds = self.looked.syncs.get(at, (0, 0.0))
            self.looked.syncs[at] = (calls + 1, seconds + spent)
        if is_tensor(result) and not result.is_nested:
            self._follow_attention(plain_name(name_of(func)), args, result, place)
            self._note_growth(name_of(func), args, result, place)
        return result

    def _follow_attention(self, name: str, args: tuple[Any, ...], result: Tensor, place: Place) -> None:
        """Find a product, then a softmax of its shape, then a product with that, in one module."""
        shape = tuple(result.shape)
        if name in ("matmul", "bmm", "baddbmm", "einsum"):
            first = next((x for x in args if is_tensor(x)), None)
            weights = self._weights.pop(self._key, None)
            if weights is not None and first is not None and tuple(first.shape) == weights[1]:
                self.looked.attention.append(AttentionOps(self._key, *weights))
            elif len(shape) >= 3:
                self._scores[self._key] = shape
        elif name == "softmax" and self._scores.get(self._key) == shape:
            self._weights[self._key] = (place, shape)

    def _note_growth(self, name: str, args: tuple[Any, ...], result: Tensor, place: Place) -> None:
        operands = [x for x in args if is_tensor(x) and x.numel()]
        size = result.numel() * result.element_size()
        if not operands or size < GROWN_BYTES or name in _MAKERS:
            return
        largest = max(operands, key=lambda x: x.numel())
        ratio = result.numel() / largest.numel()
        if ratio >= GROWTH:
            self.looked.grown.append(
                Grown(self._key, place, name, tuple(result.shape), tuple(largest.shape), size, ratio)
            )

    def _kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        packet = packet_of(func)
        if packet not in flop_registry and func is not torch.ops.prim.device.default:
            with self._kernels:  # in inference mode a product arrives whole; torch's counter opens it, too
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        self._needed.given((args, kwargs))
        result = func(*args, **kwargs)
        self._needed.made(result)
        if packet in flop_registry:
            flops = flop_registry[packet](*args, **kwargs, out_val=result)
            self.looked.flops[self._key] += flops
            first = next(inner_tensors(result), None)
            if first is not None:
                self.looked.precisions[str(first.dtype).removeprefix("torch.")] += flops
            tensors = [x for x in (*args, result) if is_tensor(x)]
            self.looked.moved[self._key] += sum(x.numel() * x.element_size() for x in tensors)
        if is_tensor(result) and result.dtype is torch.float32:
            self._search(result)
        return result

    def _search(self, result: Tensor) -> None:
        """Count the subnormal values: arithmetic with them is many times slower on a processor."""
        if result.device.type != "cpu" or not FEWEST_ELEMENTS <= result.numel() <= MOST_ELEMENTS:
            return
        with observing():
            small = (result.abs() < torch.finfo(torch.float32).tiny) & (result != 0)
            self.looked.subnormal[self._key] += int(small.sum())
            self.looked.searched[self._key] += result.numel()

    def settle(self) -> None:
        self._scores.clear()
        self._weights.clear()
        self._needed.close()


_MAKERS = frozenset(["F.embedding", "expand", "repeat", "F.one_hot", "F.linear", "F.pad"])
"""Operations that grow by design: a wide layer is not a mistake."""


def _waits(name: str, args: tuple[Any, ...]) -> bool:
    """Does it bring a value to the host? `tensor.cpu()` of a tensor on the processor does not."""
    first = args[0] if args else None
    if name == "cpu":
        return is_tensor(first) and first.device.type != "cpu"
    return is_tensor(first)
