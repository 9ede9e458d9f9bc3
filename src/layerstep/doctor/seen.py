"""What was seen between two steps: losses, calls, outputs of layers."""

from __future__ import annotations

from typing import NamedTuple

from layerstep.doctor.facts import ActivationFacts, CallFacts, ForwardFacts, InputFacts, LossFacts

__all__ = ["Seen"]


class Seen(NamedTuple):
    """What was seen since the step before."""

    losses: tuple[LossFacts, ...]
    forwards: tuple[ForwardFacts, ...]
    activations: tuple[ActivationFacts, ...]
    calls: tuple[CallFacts, ...]
    layer_inputs: tuple[InputFacts, ...]

    def and_then(self, other: Seen) -> Seen:
        """Both, one after the other."""
        return Seen(
            self.losses + other.losses,
            self.forwards + other.forwards,
            self.activations + other.activations,
            self.calls + other.calls,
            self.layer_inputs + other.layer_inputs,
        )
