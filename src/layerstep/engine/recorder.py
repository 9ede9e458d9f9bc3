"""What a recording does at a call: it measures what the module has returned, and keeps that."""

from __future__ import annotations

import contextlib
import weakref

import torch
from torch import nn

from layerstep._torch import function_modes_off
from layerstep.calls.stack import Frame
from layerstep.engine.run import Run
from layerstep.expressions.recordings import Recorded
from layerstep.tensors.clones import clone_of
from layerstep.tensors.kinds import bytes_of
from layerstep.tensors.observing import observing
from layerstep.tensors.quick_look import QuickLook, quick_look
from layerstep.tensors.shapes import tensors_in
from layerstep.tensors.summary import Summary, summarize

__all__ = ["Recorder"]

MOST_TENSORS = 8
"""Of one output; a cache with a tensor for each layer is not recorded whole."""

Leaves = list[tuple[str, torch.Tensor]]


class Recorder:
    """The action of one recording."""

    def __init__(self, run: Run, *, every: int, with_tensors: bool) -> None:
        self._run = run
        self._every = every
        self._with_tensors = with_tensors
        self._last: QuickLook | None = None
        """The look before: the next module may return the same tensor."""

    def at_exit(self, module: nn.Module, output: object) -> bool:
        """Record a call from no more than this. False if it takes the place of the call: a shared module."""
        place = self._run.models.place_of(module)
        if place is None:
            return False
        model, path = place
        forward = model.forwards
        if (forward - 1) % self._every:
            return True
        if type(output) is torch.Tensor:
            with function_modes_off():
                look = quick_look(output, limit=self._run.config.sample_above, last=self._last)
            if look is not None:
                self._last = look
                self._run.recordings.add(Recorded(path, forward, look, alive=(look.tensor,)))
                return True
        with self._run.evaluating(), observing():
            self._keep(path, forward, _leaves(output))
        return True

    def __call__(self, frame: Frame) -> None:
        """Record a call at its place, for what `at_exit` does not do."""
        assert frame.module is not None
        owner = self._run.models.owner_of(frame.module)
        forward = owner.forwards if owner is not None else 0
        if self._with_tensors:
            self._run.seen_calls.keep(frame.module, frame.args, frame.kwargs, frame.output)
        if (forward - 1) % self._every == 0:
            self._keep(frame.path.partition("|")[0], forward, _leaves(frame.output))

    def _keep(self, path: str, forward: int, leaves: Leaves) -> None:
        looks = [(place, self._look(tensor)) for place, tensor in leaves]
        entry = Recorded(path, forward, looks, alive=[weakref.ref(tensor) for _, tensor in leaves])
        if self._with_tensors:
            copies = _copies(leaves, entry.facts, self._run.recordings.budget)
            entry.value = _value(copies)
            sizes = (bytes_of(copies[place], fact.layout) for place, fact in entry.facts if place in copies)
            entry.nbytes = sum(sizes)
        self._run.recordings.add(entry)

    def _look(self, tensor: torch.Tensor) -> QuickLook | Summary:
        limit = self._run.config.sample_above
        look = quick_look(tensor, limit=limit, last=self._last)
        if look is None:
            return summarize(tensor, limit=limit, brief=True)
        self._last = look
        return look


def _leaves(output: object) -> Leaves:
    if type(output) is tuple and len(output) <= MOST_TENSORS:  # of tensors and None, as of most layers
        named = [(f"[{at}]", item) for at, item in enumerate(output) if item is not None]
        if all(type(item) is torch.Tensor for _, item in named):
            return named
    return tensors_in(output, most=MOST_TENSORS)


def _copies(leaves: Leaves, facts: tuple[tuple[str, Summary], ...], left: int) -> dict[str, torch.Tensor]:
    """What has values to copy and fits: freed, vmapped and fake tensors have none."""
    found: dict[str, torch.Tensor] = {}
    for (place, tensor), (_, summary) in zip(leaves, facts, strict=True):
        size = summary.nbytes if summary.stats is not None else None
        if size is not None and size <= left:
            left -= size
            with contextlib.suppress(Exception):  # some kinds can be read and not copied: four bits, say
                found[place] = clone_of(tensor)
    return found


def _value(copies: dict[str, torch.Tensor]) -> object:
    """One tensor as itself; several by the place that each has in the output."""
    return copies.get("", copies) or None if len(copies) != 1 else next(iter(copies.values()))
