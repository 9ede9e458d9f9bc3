"""The trail of a value that is not finite: which kernel made it, and which only handed it on.

A call is run again under two modes: one knows the function that the source names, the other sees every
kernel and looks at its result. A kernel whose result is bad becomes a link; its causes are the links that
made its bad operands. An Inf that was written on purpose, as masks are, is intended until a NaN comes of it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from layerstep._torch import call_frames, called_module, current_node, function_modes_on, is_wrapper
from layerstep._torch.kernel_keys import run_kernel
from layerstep._torch.operators import arguments_of, written_arguments
from layerstep._torch.saved import key_of
from layerstep._torch.tensors import is_tensor
from layerstep.calls.operations import Functions, Place, name_of, place_of
from layerstep.nonfinite.kernel_mode import KernelMode, called_as
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.finite import Bad, count_bad, is_finite, is_same

__all__ = ["KernelTrace", "Link", "Reached", "Replayed", "Source", "module_at", "storage_key"]

_FILLS = frozenset(
    (
        *("fill", "full", "full_like", "new_full", "masked_fill", "index_fill", "constant_pad_nd", "where"),
        *("scalar_tensor", "lift_fresh", "lift_fresh_copy"),
    )
)
"""What writes a constant: an Inf that one of them makes of finite operands is meant to be there."""

_EMPTY = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"))


@dataclass(frozen=True, slots=True)
class Source:
    """A bad value that came in from outside of the call: a parameter, an input, memory never written."""

    name: str
    bad: Bad

    @property
    def intended(self) -> bool:
        return not self.bad.nan and not self.name.startswith("parameter")


@dataclass(frozen=True, slots=True)
class Link:
    """One kernel with a result that is not finite."""

    index: int
    name: str
    """As the source calls it."""
    kernel: str
    place: Place
    module: nn.Module | None
    bad: Bad
    causes: tuple[int, ...]
    sources: tuple[Source, ...]
    intended: bool
    node: str = ""
    """The autograd node that ran it, in the backward."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The kernel that was looked for, just run: its operands as they were before, and its result."""

    func: Any
    operands: tuple[tuple[str, Any], ...]
    result: Any
    frame: FrameType


class KernelTrace:
    """Follows one call. `names` has the tensors from outside by their memory.

    `reached` is told of the kernel with the number `stop_at`, `made` of every link; `target` is a value that
    is looked for among the results.
    """

    def __init__(
        self,
        *,
        names: dict[int, str],
        stop_at: int = -1,
        reached: Callable[[Reached], None] | None = None,
        made: Callable[[Link, Reached], None] | None = None,
        target: Tensor | None = None,
    ) -> None:
        self.links: list[Link] = []
        self.names = names
        self._stop_at = stop_at
        self._reached = reached
        self._made = made
        self._target = target
        self.same: Link | None = None
        """The link that made the very values of the target."""
        self.alike: Link | None = None
        """The last one that made something of its shape."""
        self._count = 0
        self._function = ""
        self._writers: dict[int, int] = {}
        self.functions = Replayed(self._call)
        self.kernels = KernelMode(self.run)

    @contextlib.contextmanager
    def on(self, *, may_fuse: bool) -> Iterator[None]:
        """Watch what this thread runs meanwhile; with fused kernels in it, by a mode that leaves them on."""
        if may_fuse:
            with self.kernels:
                yield
            return
        with function_modes_on(), self.functions, self.kernels:
            yield

    def link_of(self, tensor: Tensor) -> Link | None:
        """What made the bad values in the memory of this tensor."""
        number = self._writers.get(storage_key(tensor))
        return self.links[number] if number is not None else None

    def chain(self, link: Link) -> list[Link]:
        """From a bad result back to the kernel that made the first of it."""
        found = [link]
        while True:
            causes = [self.links[number] for number in found[-1].causes]
            causes = [cause for cause in causes if not cause.intended and cause.index < found[-1].index]
            if not causes or any(not source.intended for source in found[-1].sources):
                return found
            found.append(min(causes, key=lambda cause: (not cause.bad.nan, cause.index)))

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer, self._function = self._function, name_of(func)
        try:
            return func(*args, **kwargs)
        finally:
            self._function = outer

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a kernel, and look at what it made."""
        number = self._count
        self._count += 1
        written = [tensor for tensor in _written(func, args, kwargs) if is_tensor(tensor)]
        were_bad = [tensor for tensor in written if not is_finite(tensor)]
        operands = _named(func, args, kwargs, written) if number == self._stop_at or self._made else ()
        result = run_kernel(func, args, kwargs)
        bad = next((each for each in (*tensors_of(result), *written) if not is_finite(each)), None)
        if bad is not None:
            self._note(
                func, number, bad, inputs=tensors_of((args, kwargs)), written=written, were_bad=were_bad
            )
            if self._made is not None and self.links and self.links[-1].index == number:
                self._made(self.links[-1], Reached(func, operands, result, sys._getframe(1)))
        if number == self._stop_at and self._reached is not None:
            self._reached(Reached(func, operands, result, sys._getframe(1)))
        return result

    def _note(
        self,
        func: Any,
        number: int,
        result: Tensor,
        *,
        inputs: list[Tensor],
        written: list[Tensor],
        were_bad: list[Tensor],
    ) -> None:
        kernel = name_of(func)
        short = kernel.rpartition(".")[2]
        if short in _EMPTY:
            self.names[storage_key(result)] = f"memory that `{short}` left as it was"
            return
        bad_inputs = [
            t for t in inputs if _is_among(t, were_bad) or not (_is_among(t, written) or is_finite(t))
        ]
        causes = {self._writers[key] for t in bad_inputs if (key := storage_key(t)) in self._writers}
        sources = [self._source(t) for t in bad_inputs if storage_key(t) not in self._writers]
        bad = count_bad(result)
        frame = sys._getframe(1)
        node = current_node()
        link = Link(
            number,
            self._function or called_as(func, frame),
            kernel,
            place_of(frame),
            module_at(frame),
            bad,
            tuple(sorted(causes)),
            tuple(sources),
            not bad.nan and self._is_meant(short, causes, sources),
            node.name() if node is not None else "",
        )
        self._writers[storage_key(result)] = len(self.links)
        self.links.append(link)
        if self._target is not None:
            self._compare(result, self._target, link)

    def _compare(self, result: Tensor, target: Tensor, link: Link) -> None:
        if result.shape == target.shape and result.dtype == target.dtype:
            self.alike = link
            if self.same is None and is_same(result, target):
                self.same = link

    def _is_meant(self, short: str, causes: set[int], sources: list[Source]) -> bool:
        if not causes and not sources:
            return short.rstrip("_") in _FILLS
        return all(self.links[n].intended for n in causes) and all(source.intended for source in sources)

    def _source(self, tensor: Tensor) -> Source:
        return Source(
            self.names.get(storage_key(tensor), "a tensor that the call did not make"), count_bad(tensor)
        )


class Replayed(Functions):
    """In a rerun no hook of the program runs: those that a model puts on its tensors are left out."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("register_hook", "register_post_accumulate_grad_hook"):
            return RemovableHandle({})
        return super().__torch_function__(func, types, args, kwargs)


def _is_among(tensor: Tensor, others: list[Tensor]) -> bool:
    return any(tensor is other for other in others)


def storage_key(tensor: Tensor) -> int:
    """The memory of a tensor, its own address where it has none."""
    return key_of(tensor) or id(tensor)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The operands that a kernel writes to."""
    written = written_arguments(func)
    return tensors_of([args[at] if at < len(args) else kwargs.get(each.name) for at, each in written])


def _named(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[Tensor]
) -> tuple[tuple[str, Any], ...]:
    """The operands by their names in the schema; what will be written to is copied first."""
    names = [argument.name for argument in arguments_of(func)]
    pairs = [*zip(names, args, strict=False), *kwargs.items()]
    return tuple(
        (name, value.clone() if is_tensor(value) and _is_among(value, written) else value)
        for name, value in pairs
    )


def module_at(frame: FrameType) -> nn.Module | None:
    """The innermost module that is running."""
    for call in call_frames(frame):
        module = called_module(call)[0]
        if not is_wrapper(module):
            return module
    return None
