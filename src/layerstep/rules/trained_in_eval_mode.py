"""A model that is trained in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["TrainedInEvalMode"]


@rule("R21", "trained-in-eval-mode", severity="warning", cost="always")
class TrainedInEvalMode(Rule):
    """The model is in evaluation mode while it is trained.

    Why: dropouts do nothing then, and batch norms use their old statistics and do not update them. Most often
    the program called `model.eval()` for an evaluation and did not call `model.train()` again.

    How to fix: call `model.train()` at the beginning of each epoch.
    """

    advice = ("call model.train() at the beginning of each epoch, after model.eval()",)
    explains = ("overfitting", "not-learning", "plateau", "diverging", "loss-spike")
    patience = 3

    def __init__(self) -> None:
        self._was_training: set[str] = set()

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        own = [call for call in step.forwards if call.is_own and call.with_grad]
        for model in {call.model for call in own}:
            calls = [call for call in own if call.model == model]
            if any(call.is_training for call in calls):
                self._was_training.add(model)
            elif calls[0].has_modes:
                since = " since an evaluation" if model in self._was_training else ""
                at = step.losses[-1].backward_at if step.losses else Place()
                yield Sign(
                    f"{model} is trained in evaluation mode{since}: dropouts and batch norms do not train",
                    Place(module=model, file=at.file, line=at.line),
                    severity=Severity.ERROR if since else None,
                )
