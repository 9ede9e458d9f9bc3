"""The weights of a module as they were when its forward began, for the forwards that write them.

Few do: momentum encoders, clamps. To copy all weights at each forward would cost too much, so it is done at
the first one, in training and in evaluation. If that one has written none, the next ones are not asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from torch import Tensor, nn

from layerstep._torch.tensors import size_of, version_of
from layerstep.module_paths.by_module import ByModule
from layerstep.rerun.weights import WeightState, weights_and_gradients
from layerstep.tensors.observing import checksum, observing

__all__ = ["KeptWeights", "WeightWriters"]


class WeightWriters:
    """Which modules write weights in their forward, as far as it is known."""

    def __init__(self) -> None:
        self._known: ByModule[dict[bool, bool]] = ByModule()

    def keep(self, module: nn.Module, *, room: int) -> KeptWeights | None:
        """The weights of a module that writes them, or may do so; copies as far as there is room."""
        writes = (self._known.get(module) or {}).get(module.training, True)
        return KeptWeights(module, room, self._learn) if writes else None

    def _learn(self, module: nn.Module, training: bool, writes: bool) -> None:
        known = self._known.get(module)
        (known if known is not None else self._known.put(module, {}))[training] = writes


class KeptWeights:
    """Weights and gradients as they are now; of those without a copy there is a checksum."""

    def __init__(self, module: nn.Module, room: int, learn: Callable[[nn.Module, bool, bool], None]) -> None:
        self._module, self._training, self._learn = module, module.training, learn
        self._copies: list[WeightState] = []
        self._sums: list[tuple[Tensor, int]] = []
        self._at_stop: dict[int, int] = {}
        with observing():
            for tensor in weights_and_gradients(module):
                room -= size_of(tensor)
                with contextlib.suppress(Exception):  # freed, or of a kind that cannot be copied
                    if room >= 0:
                        self._copies.append(WeightState.of(tensor, with_values=True))
                    else:
                        self._sums.append((tensor, checksum(tensor)))

    def stopped(self) -> None:
        """The run stands still: who writes from here on is the user."""
        self._at_stop = {id(tensor): version_of(tensor) for tensor in self._tensors()}

    def goes_on(self, written: Collection[int]) -> None:
        """What the user has written stays. `written`: the ids of tensors that are known to be."""
        users = {key for key, tensor in self._by_id().items() if version_of(tensor) != self._at_stop.get(key)}
        users.update(written)
        with observing():
            for number, state in enumerate(self._copies):
                if id(state.tensor) in users:
                    self._copies[number] = WeightState.of(state.tensor, with_values=True)
            for number, (tensor, _) in enumerate(self._sums):
                if id(tensor) in users:
                    self._sums[number] = tensor, checksum(tensor)

    def lost(self) -> str:
        """What was written and cannot be put back, in words."""
        with observing():
            lost = next((tensor for tensor, before in self._sums if checksum(tensor) != before), None)
        if lost is None:
            return ""
        return f"a weight of {size_of(lost):,} bytes was written, and no copy was taken of it"

    def restore(self) -> None:
        """Put back what the forward has written."""
        with observing():
            for state in self._copies:
                state.restore()

    def forward_ends(self) -> None:
        """Remember whether it wrote any."""
        with observing():
            same = all(state.is_as_it_was() for state in self._copies) and not self.lost()
        self._learn(self._module, self._training, not same)

    def _tensors(self) -> list[Tensor]:
        return [state.tensor for state in self._copies] + [tensor for tensor, _ in self._sums]

    def _by_id(self) -> dict[int, Tensor]:
        return {id(tensor): tensor for tensor in self._tensors()}
