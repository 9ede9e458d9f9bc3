"""Shadows: the float64 values that belong to the memory of the run's tensors.

It keeps one flat tensor for each storage, so that views and writes in place need no care: the shadow of a
view is the same view of that tensor, and all views see what is written to it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from layerstep.tensors.kinds import readable

__all__ = ["Shadows", "has_shadow"]


class Shadows:
    """The float64 values of all memory that the rerun has used, as long as it lives."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.nbytes = 0
        self._bases: dict[StorageWeakRef, tuple[Tensor, torch.dtype]] = {}
        self._exact: set[StorageWeakRef] = set()
        """Memory whose shadow was cast from the run and not written since, so it has no error."""

    def __len__(self) -> int:
        return len(self._bases)

    def of(self, tensor: Tensor) -> Tensor | None:
        """The shadow of a tensor, to read and write; made from its own values where there is none yet."""
        if not has_shadow(tensor):
            return None
        storage = tensor.untyped_storage()
        key = StorageWeakRef(storage)
        known = self._bases.get(key)
        if known is None or known[0].numel() * tensor.element_size() < storage.nbytes():
            flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
            self._drop([key])
            known = self._bases[key] = (flat.to(torch.float64, copy=True), tensor.dtype)
            self._exact.add(key)
            self.nbytes += known[0].numel() * 8
        base, dtype = known
        if dtype is not tensor.dtype:  # the same bytes read as other numbers
            return None
        return base.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def is_exact(self, tensor: Tensor) -> bool:
        return StorageWeakRef(tensor.untyped_storage()) in self._exact

    def has(self, tensor: Tensor) -> bool:
        return StorageWeakRef(tensor.untyped_storage()) in self._bases

    def was_written(self, tensor: Tensor) -> None:
        self._exact.discard(StorageWeakRef(tensor.untyped_storage()))

    def forget(self, tensor: Tensor) -> None:
        """An op that is not followed has written its memory: its present values count as exact."""
        if tensor.layout is torch.strided and not tensor.is_nested:
            self._drop([StorageWeakRef(tensor.untyped_storage())])

    def put(self, tensor: Tensor, values: Tensor, *, may_keep: bool) -> None:
        """Store the shadow of a new tensor.

        `may_keep`: nothing else uses the values, so they need no copy.
        """
        storage = tensor.untyped_storage()
        key = StorageWeakRef(storage)
        count = storage.nbytes() // tensor.element_size()
        mine = values.untyped_storage()
        fits = mine.nbytes() == 8 * count and values.storage_offset() == tensor.storage_offset()
        if may_keep and fits and values.stride() == tensor.stride():
            base = values.as_strided((count,), (1,), 0)
        else:
            base = torch.zeros(count, dtype=torch.float64, device=tensor.device)
            base.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(values)
        self._drop([key])
        self._bases[key] = (base, tensor.dtype)
        self.nbytes += count * 8

    def sweep(self) -> bool:
        """Drop the shadows of freed memory. Is the rest within the budget?

        If not, drop also what can be cast again, such as weights.
        """
        self._drop([key for key in self._bases if key.expired()])
        if self.nbytes > self.budget:
            self._drop(list(self._exact))
        return self.nbytes <= self.budget

    def _drop(self, keys: list[StorageWeakRef]) -> None:
        for key in keys:
            base, _ = self._bases.pop(key, (None, None))
            self.nbytes -= base.numel() * 8 if base is not None else 0
            self._exact.discard(key)

    def clear(self) -> None:
        self._drop(list(self._bases))


def has_shadow(tensor: Tensor) -> bool:
    """Is it a tensor of floats with memory? A zero tangent of forward-mode autograd has none."""
    if type(tensor) not in (Tensor, nn.Parameter) or not tensor.is_floating_point() or tensor.is_neg():
        return False
    parts, _ = readable(tensor)
    return len(parts) == 1 and parts[0] is tensor
