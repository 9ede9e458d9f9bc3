"""A training that ends far from what a loss can reach."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.dynamics import best_guess, targets_drift, windows_of
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["Underfitting"]

LEAST = 100
HIGH = 0.6


@rule("R42", "underfitting", severity="info", confidence="statistical", cost="always")
class Underfitting(Rule):
    """The loss is only a little better than always guessing, and no longer falls.

    Why: the model is too small, the learning rate too small, or the labels cannot be predicted from the
    input. The rule compares the training loss with the entropy of the labels or the variance of the targets.
    If the targets are probabilities, it subtracts their own entropy, because no model can do better.

    How to fix: use a larger model, train longer, or give it better inputs. Noisy labels cannot be learned.
    """

    advice = ("use a larger model, or another learning rate, or train longer",)

    def ended(self, run: RunFacts) -> Iterable[Sign]:
        turns = [each for each in run.optimizers.values() if len(each.loss)]
        if len(turns) != 1:
            return
        guess, seen = best_guess(turns[0]), windows_of(turns[0], least=LEAST)
        if guess is None or seen is None or guess.loss <= 0 or targets_drift(turns[0]):
            return
        if guess.share(seen.last) > HIGH and seen.before - seen.last < 0.02 * seen.before:
            at = turns[0].made_at
            yield Sign(
                f"the loss ends at {seen.last:.4g}; {guess.words} gives {guess.loss:.4g}",
                Place(file=at.file, line=at.line),
                {"loss": seen.last, "guess": guess.loss},
            )
