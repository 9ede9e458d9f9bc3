"""When an edit acts, and on what: the calls, the tokens, and the same again in a recomputation."""

from __future__ import annotations

import contextlib
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from layerstep._torch import NO_BACKWARD, graph_task
from layerstep._torch.tensors import is_tensor
from layerstep.calls.events import Event, Phase
from layerstep.calls.stack import Frame
from layerstep.engine.run import Run
from layerstep.errors import BadArguments, UserError
from layerstep.process.frames import forget_locals
from layerstep.tensors.containers import tensors_of

__all__ = ["Acting", "LeftAlone", "Make", "Occasion", "Reach", "fingerprint", "only_tokens", "parse_tokens"]

REMEMBERED = 10_000
"""Calls in which an edit acted. A recomputation asks for them."""
FRAMES = 30
"""How far up the positions of tokens are looked for."""


@dataclass(frozen=True, slots=True)
class Reach:
    """In which calls an edit acts, and on which tokens of them."""

    most: int = 0
    """How many calls; 0 for all."""
    call: int = 0
    """Which call of a module in a forward; 0 for all."""
    tokens: tuple[int | None, int | None] | None = None
    """Positions in the sequence, as those of a slice."""

    @property
    def words(self) -> str:
        start, end = self.tokens or (None, None)
        shown = f"{'' if start is None else start}:{'' if end is None else end}"
        words = (
            f"for {self.most}" if self.most else "",
            f"call {self.call}" if self.call else "",
            f"tokens {shown}" if self.tokens is not None else "",
        )
        return " ".join(word for word in words if word)


def parse_tokens(text: str) -> tuple[int | None, int | None] | None:
    """`3`, `-1`, `2:5`, `:4`: positions of tokens."""
    if not text:
        return None
    match = re.fullmatch(r"(-?\d+)?(:)?(-?\d+)?", text)
    if match is None or (match[2] is None and match[1] is None):
        raise BadArguments(f"{text!r} are no tokens", "tokens 3, tokens -1, tokens 2:5")
    start = int(match[1]) if match[1] else None
    if match[2] is None:
        return start, None if start == -1 else (start or 0) + 1
    return start, int(match[3]) if match[3] else None


@dataclass(frozen=True, slots=True)
class Occasion:
    """A call at which an edit acts."""

    event: Event
    place: Frame
    seed: int
    """Of the edit, the forward and the call: the same again in a recomputation."""

    def generator(self, device: torch.device) -> torch.Generator:
        """Random numbers of its own: the run's streams stay where they are."""
        return torch.Generator(device).manual_seed(self.seed)


Make = Callable[[Occasion], Event]
"""What an edit does at a call: the event with other values. It raises `LeftAlone` where there are none."""


class LeftAlone(Exception):
    """An edit finds nothing to change in a call; the text says why."""


class Acting:
    """Counts the calls of an edit's modules, and lets it act in those that its reach means.

    Activation checkpointing runs a call again in the backward pass, and there the edit must do the same, or
    the gradients are silently wrong. An edit that acts in every call alike just acts. Any other remembers the
    calls in which it acted by what they were given, because their order is another one in the backward pass.
    """

    def __init__(
        self,
        run: Run,
        reach: Reach,
        make: Make,
        *,
        is_random: bool = False,
        acted_first: Callable[[Event, Event], None] = lambda before, after: None,
    ) -> None:
        self._run = run
        self._acted_first = acted_first
        """Is told of the first call in which it acted: before, and after."""
        self.reach = reach
        self._make = make
        self._is_random = is_random
        self._differs = is_random or bool(reach.most or reach.call)
        """Does it do different things in different calls?"""
        self._counts: dict[int, tuple[tuple[int, int], int]] = {}
        """By module: the forward and how often one has begun again, and the calls in it so far."""
        self._acted: OrderedDict[tuple[Any, ...], int] = OrderedDict()
        """The seed of each call in which it acted."""
        self.done = 0
        """In how many calls it acted. A forward that begins again counts from where it began."""
        self.why_not = ""
        """Why it left the last call alone, if it did."""

    def anew(self) -> Acting:
        """The same edit for a rerun, which must not count in the run."""
        return Acting(self._run, self.reach, self._make, is_random=self._is_random)

    def __call__(self, event: Event, place: Frame) -> Event | None:
        if graph_task() != NO_BACKWARD:
            seed = self._acted.get(fingerprint(event)) if self._differs else 0
            with contextlib.suppress(LeftAlone):
                return self._make(Occasion(event, place, seed)) if seed is not None else None
            return None
        forward, number = self._number(event)
        is_over = 0 < self.reach.most <= self.done
        if is_over or self.reach.call not in (0, number):
            self.why_not = f"the last call was call {number} of its forward, not call {self.reach.call}"
            return None
        seed = crc32(f"{place.path} {forward} {number}".encode())
        try:
            changed = self._make(Occasion(event, place, seed))
        except LeftAlone as reason:
            self.why_not = str(reason)
            return None
        if not self.done:
            self._acted_first(event, changed)
        self.done += 1
        if self._differs:
            self._remember(event, seed)
        return changed

    def _remember(self, event: Event, seed: int) -> None:
        self._acted[fingerprint(event)] = seed
        if len(self._acted) > REMEMBERED:
            self._acted.popitem(last=False)

    def _number(self, event: Event) -> tuple[int, int]:
        """The forward, and which call of the module in it this is."""
        owner = self._run.models.owner_of(event.module)
        forward = owner.forwards if owner is not None else 0
        if event.phase is Phase.ENTER and owner is not None and owner.root is event.module:
            forward += 1  # the hook that counts it comes after this one
        run = (forward, self._run.restarts)
        known, count = self._counts.get(id(event.module), (run, 0))
        count = count + 1 if known == run else 1
        self._counts[id(event.module)] = (run, count)
        return forward, count


def fingerprint(event: Event) -> tuple[Any, ...]:
    """What a call is given or returns, in a few numbers: a recomputation gives the same bits again."""
    value = event.output if event.phase is Phase.EXIT else (event.args, event.kwargs)
    tensors = [tensor.detach() for tensor in tensors_of(value)[:4] if not tensor.is_meta]
    # As text: a NaN would not be equal to itself, and a value that is NaN is one that people replace.
    sums = (str(float(tensor.double().nansum())) for tensor in tensors if not tensor.is_complex())
    return (id(event.module), *(tuple(tensor.shape) for tensor in tensors), *sums)


def only_tokens(reach: Reach, occasion: Occasion) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Keeps the old values of all other tokens, if the reach names some."""
    if reach.tokens is None:
        return None
    start, end = reach.tokens
    first = _first_position(occasion) if (start or 0) >= 0 and (end or 0) >= 0 else 0

    def keep(old: Tensor, new: Tensor) -> Tensor:
        if new.shape != old.shape or old.dim() < 2:
            raise UserError(f"no tokens in a tensor of shape {list(old.shape)}")
        dim = 1 if old.dim() > 2 else 0
        low = None if start is None else start - first if start >= 0 else start
        high = None if end is None else end - first if end >= 0 else end
        index = [slice(None)] * dim + [slice(_at_least_0(low, start), _at_least_0(high, end))]
        if not new[tuple(index)].numel():
            raise LeftAlone(f"no token of {reach.words} is among the {old.shape[dim]} of the call")
        kept = old.clone()
        kept[tuple(index)] = new[tuple(index)]
        return kept

    return keep


def _at_least_0(local: int | None, position: int | None) -> int | None:
    """A position before the first token of this call is none of it; one from the end stays as it is."""
    return max(local, 0) if local is not None and position is not None and position >= 0 else local


def _first_position(occasion: Occasion) -> int:
    """The position of the first token of this call: with a cache, those before it are not in the tensor."""
    for name in _POSITIONS:
        if (first := _first(occasion.event.kwargs.get(name))) is not None:
            return first
    frame: FrameType | None = occasion.place.caller
    for _ in range(FRAMES):
        if frame is None:
            break
        found = next((x for name in _POSITIONS if (x := _first(frame.f_locals.get(name))) is not None), None)
        forget_locals(frame)
        if found is not None:
            return found
        frame = frame.f_back
    return 0


_POSITIONS = ("cache_position", "position_ids")


def _first(value: Any) -> int | None:
    return int(value.reshape(-1)[0]) if is_tensor(value) and value.numel() else None
