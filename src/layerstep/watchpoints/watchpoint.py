"""A tensor whose writes are watched: which memory is its own, how it looked last, what a write did to it."""

from __future__ import annotations

import math
import weakref
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from layerstep._torch import below_everything
from layerstep._torch.guards import functions_off
from layerstep.engine.point import Point, PointKind
from layerstep.watchpoints.tensor_locator import PLAIN, Home, plain_of

__all__ = ["Change", "Watchpoint", "change_between", "span_of"]

BLOCK = 1 << 20
"""Elements that are compared at once."""


@dataclass(slots=True, eq=False)
class Watchpoint(Point):
    """Stops where one tensor is written: the tensor, its history, and a copy to compare with."""

    kind: ClassVar[PointKind] = PointKind.WATCH
    _: KW_ONLY
    text: str = ""
    """The tensor as the user named it."""
    budget: int = 0
    """Bytes of the copy; of a larger tensor only a part is compared."""
    home: Home | None = None
    same: int = 0
    """Writes that left every value as it was."""
    last: str = ""
    """The last write, in words."""
    looked_at: str = ""
    """Where it was compared last."""
    steps: tuple[int, ...] = ()
    """Of each dimension, every so many elements one is compared; empty: all of them."""
    pointer: int = 0
    first: int = 0
    end: int = 0
    storage: int = 0
    _known: Tensor | None = None

    @property
    def name(self) -> str:
        """The tensor as it is shown."""
        return self.home.label if self.home is not None else self.text

    @property
    def is_at_modules(self) -> bool:
        return False

    @property
    def is_pending(self) -> bool:
        return self.home is None

    def line(self) -> str:
        return f"watch --stop {self.text}"

    @property
    def is_live(self) -> bool:
        return self.enabled and self.home is not None and not self.trouble

    def settle(self, home: Home) -> None:
        """Watch the tensor of a home from now on."""
        self.home, self.trouble, self.looked_at = home, "", "the watch was set"
        self.look()

    def follow(self, *, to_seat: bool) -> bool:
        """Go on with what is there now; `to_seat`, or if its tensor is gone: with what took its place."""
        home = self.home
        if home is None:
            return False
        if home.parameter is not None:
            return home.parameter() is not None
        now = home.seat() if home.seat is not None else None
        if now is not None and (to_seat or home.find() is None):
            self.home = replace(home, find=weakref.ref(now))
        return self.home is not None and self.home.find() is not None

    def is_away(self) -> bool:
        """Has its module another tensor under its name? Ask between calls: `functional_call` swaps them."""
        home = self.home
        if home is None or home.seat is None:
            return False
        now = home.seat()
        return now is not None and now is not home.find()

    def tensor(self) -> Tensor | None:
        """The tensor as it is now, without its graph; None where there is none."""
        found = plain_of(self.home.find()) if self.home is not None else None
        if found is None:
            return None
        if self.home is None or self.home.part is None:
            return found.detach()
        size, stride, offset, dtype = self.home.part
        try:
            return found.detach().view(dtype).as_strided(size, stride, offset)
        except RuntimeError:  # the whole has another size now
            return None

    def find_pointer(self) -> int:
        """Where its memory begins now, 0 if there is none; asked before every op."""
        assert self.home is not None
        found = self.home.find()
        if found is None:
            return 0
        if type(found) not in PLAIN:
            found = plain_of(found)
        try:
            with functions_off():
                return found.data_ptr() if found is not None else 0
        except RuntimeError:  # a sparse gradient, say
            return 0

    def is_unreadable(self) -> bool:
        """Is there a tensor, but none whose values could be compared?"""
        found = self.home.find() if self.home is not None else None
        return found is not None and plain_of(found) is None

    def look(self) -> None:
        """Take what is there now as known."""
        with below_everything():
            now = self.tensor()
            self.pointer = self.find_pointer()
            if now is None:
                self._known, self.first, self.end, self.storage = None, 0, 0, 0
                return
            self.first = now.data_ptr()
            self.end = self.first + span_of(now)
            self.storage = now.untyped_storage().data_ptr()
            seen = self._seen(now)
            self._known = seen.clone(memory_format=torch.contiguous_format)

    def compare(self) -> tuple[Tensor | None, Tensor | None, bool]:
        """What was known, what is there now, and whether a bit of it differs. Costs one pass over both."""
        with below_everything():
            now = self.tensor()
            seen = self._seen(now) if now is not None else None
            known = self._known
            if seen is None or known is None:
                return known, seen, seen is not known
            if seen.shape != known.shape or seen.dtype != known.dtype or seen.device != known.device:
                return known, seen, True
            return known, seen, not torch.equal(_bits(seen), _bits(known))

    def _seen(self, tensor: Tensor) -> Tensor:
        """The elements that are compared: all of them, or an even part that fits the budget."""
        most = max(self.budget // tensor.element_size(), 1)
        steps = [1] * tensor.dim()
        while tensor.numel() > most:
            widest = max(range(tensor.dim()), key=lambda each: tensor.shape[each])
            step = min(math.ceil(tensor.numel() / most), tensor.shape[widest])
            steps[widest] *= step
            tensor = tensor[(slice(None),) * widest + (slice(None, None, step),)]
        self.steps = tuple(steps) if any(step > 1 for step in steps) else ()
        return tensor

    def overlaps(self, written: Tensor) -> bool:
        """Does a written tensor reach into its memory? Other columns of one matrix do by this measure."""
        first = written.data_ptr()
        if first >= self.end or first < self.storage:
            return False
        return first >= self.first or first + span_of(written) > self.first

    @property
    def state(self) -> str:
        """How often it was written, and by what last; or why not."""
        if not self.hits:
            return self.silence()
        gone = f"; {self.trouble}" if self.trouble else ""
        return f"{'1 write' if self.hits == 1 else f'{self.hits} writes'}, the last: {self.last}{gone}"

    def silence(self) -> str:
        """Why it has not stopped; empty if it has."""
        if self.hits:
            return ""
        if self.home is None:
            return f"pending: {self.trouble}"
        if self.trouble:
            return f"never fired: {self.trouble}"
        if self.same:
            times = "once" if self.same == 1 else f"{self.same} times"
            return f"never fired: it was written {times}, with the values that it had"
        return "never fired: nothing wrote it"


def span_of(tensor: Tensor) -> int:
    """The bytes from its first element to its last."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: Tensor) -> Tensor:
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous().view(_INTEGERS[tensor.element_size()])


@dataclass(frozen=True, slots=True)
class Change:
    """What a write did to the values."""

    count: int
    total: int
    largest: float | None = None
    """The largest |Δ|, of elements that are finite before and after."""
    index: tuple[int, ...] = ()
    """Where that is; without one, the first element that differs."""
    values: tuple[Any, Any] = (None, None)
    """What was there before and is there after."""


def change_between(before: Tensor, after: Tensor, steps: tuple[int, ...] = ()) -> Change:
    """Compare two tensors of one shape, block by block."""
    with below_everything():
        count, largest, at, first = 0, -1.0, -1, -1
        a, b = before.contiguous().view(-1), after.resolve_conj().to(before).contiguous().view(-1)
        wide = torch.complex128 if a.is_complex() else torch.float64
        for start in range(0, a.numel(), BLOCK):
            x, y = a[start : start + BLOCK], b[start : start + BLOCK]
            differs = _bits(x) != _bits(y)
            differs = differs.any(-1) if a.is_complex() else differs
            here = int(differs.sum())
            if here and first < 0:
                first = start + int(differs.to(torch.uint8).argmax())
            count += here
            if here:
                gap = (y.to(wide) - x.to(wide)).abs()
                gap = torch.where(differs & gap.isfinite(), gap, -1.0)
                most, where = gap.max(0)
                if float(most) > largest:
                    largest, at = float(most), start + int(where)
        place = at if at >= 0 else first
        if place < 0:
            return Change(0, a.numel())
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), before.shape))
        index = tuple(i * step for i, step in zip(index, steps, strict=True)) if steps else index
        values = (a[place].item(), b[place].item())
        return Change(count, a.numel(), largest if at >= 0 else None, index, values)
