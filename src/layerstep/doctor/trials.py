"""What is tried on a copy of the model in some of the first looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerstep.doctor.mixed_samples import look_at_samples
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.sequences import LOOKS_AT_TOKENS, has_padding, has_tokens, look_at_tokens
from layerstep.doctor.training_calls import TrainingCall

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Trials"]

LOOK_AT_SAMPLES = 4


class Trials:
    """Tries how a model treats tokens and samples, a few times in a run."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def look(self, call: TrainingCall | None, number: int, run: RunFacts) -> None:
        """A step was looked at, the so manieth."""
        if call is None or call.reference() is None:
            return  # a model that is gone was made for one call: `net[:4](x)`
        if number in LOOKS_AT_TOKENS:
            self._try_tokens(call, run)
        if number == LOOK_AT_SAMPLES and run.mixing is None:
            run.mixing = look_at_samples(self._session, call)

    def _try_tokens(self, call: TrainingCall, run: RunFacts) -> None:
        """In the third look, and once more if padding comes later: how the model treats tokens."""
        if not has_tokens(call):
            return
        known = run.sequence
        if known is None or (not known.padding and not known.skipped and has_padding(call)):
            run.sequence = look_at_tokens(self._session, call)
