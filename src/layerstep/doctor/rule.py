"""What a rule is. A rule is a class in a file of `rules/`; a run makes one object of each.

A rule sees facts and yields signs. It keeps its own state between steps. The diagnosis counts the signs, says
each finding once, and folds what one finding explains under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from layerstep.doctor.facts import EvaluationFacts, StepFacts
from layerstep.doctor.finding import Confidence, Severity, Sign
from layerstep.doctor.run_facts import RunFacts
from layerstep.errors import BadArguments
from layerstep.registry import RuleEntry, all_rules, find_rule, leave_out_rule, near, untold_troubles

__all__ = ["Rule", "WindowRule", "make_rules", "rule_named"]


class Rule:
    """One fault of training.

    Override the moments in which the fault shows itself.
    """

    code = ""
    name = ""
    severity = Severity.WARNING
    confidence = Confidence.EXACT
    cost = "always"
    """These five are what `@rule` says. One of cost `look` is asked only in steps that were looked at, and in
    those whose loss was."""
    advice: ClassVar[tuple[str, ...]] = ()
    """What to do, the likeliest first."""
    explains: ClassVar[tuple[str, ...]] = ()
    """The rules whose findings follow from this fault."""
    confirm: ClassVar[str] = ""
    """The command that proves it."""
    patience: ClassVar[int] = 1
    """How many looks in a row must show a sign before it is a finding."""

    def begins(self, run: RunFacts) -> Iterable[Sign]:
        """The first step of a training is about to be taken: its parameters are as initialised."""
        return ()

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        """An optimizer has stepped."""
        return ()

    def evaluated(self, evaluation: EvaluationFacts, run: RunFacts) -> Iterable[Sign]:
        """A trained model was called without gradients, between two training steps."""
        return ()

    def ended(self, run: RunFacts) -> Iterable[Sign]:
        """The run is over, or a report is asked for."""
        return ()


class WindowRule(Rule):
    """A rule about windows of a series: it is asked every few steps, and its answer holds till the next.

    A finding needs two answers in a row.
    """

    every: ClassVar[int] = 20
    patience = 21

    def __init__(self) -> None:
        self._signs: dict[int, list[Sign]] = {}
        self._asked: dict[int, int] = {}

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        asked = self._asked[step.optimizer] = self._asked.get(step.optimizer, 0) + 1  # some steps are unseen
        if asked % self.every == 0:
            self._signs[step.optimizer] = list(self.look_back(step, run))
        return self._signs.get(step.optimizer, ())

    def look_back(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        """What the series say at this step."""
        return ()


def _made(entry: RuleEntry) -> Rule:
    """A fresh rule for a run."""
    made: Rule = entry.kind()
    made.code, made.name = entry.code, entry.name
    made.cost = entry.cost
    made.severity, made.confidence = Severity(entry.severity), Confidence(entry.confidence)
    return made


def make_rules(tell: Callable[[str], None]) -> list[Rule]:
    """A fresh rule of each kind, also of other packages; one that cannot be made is told and left out."""
    made = []
    for entry in all_rules():
        try:
            made.append(_made(entry))
        except Exception as error:
            leave_out_rule(entry, error)
    for trouble in untold_troubles():
        tell(trouble)
    return made


def rule_named(word: str, wanted: str = "rule") -> str:
    """The name of the rule that has this code or name; if there is none, an error says what is wanted."""
    entry = find_rule(word)
    if entry is None:
        close = near(word, [name for each in all_rules() for name in (each.code, each.name)])
        hint = f"did you mean {close[0]}?" if close else "`explain` lists the rules"
        raise BadArguments(f"no {wanted} {word!r}", hint)
    return entry.name
