"""From signs to findings: counted, said once, ranked by cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from typing import Any

from layerstep.doctor.facts import EvaluationFacts, StepFacts
from layerstep.doctor.finding import Finding, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts

__all__ = ["Diagnosis", "ranked"]

CLEAN = 20
"""Looks without a sign after which a finding is cleared."""
LATE = 10
"""Steps that a judgement may take."""
MOST = 200
"""Findings that are kept."""


@dataclass(slots=True)
class _Track:
    """One rule at one place."""

    streak: int = 0
    began: int = 0
    """The step in which the streak began."""
    clean: int = 0
    finding: Finding | None = None


class Diagnosis:
    """Asks the rules at each step. `found` is called once for each finding, when it arises."""

    def __init__(
        self,
        rules: Iterable[Rule],
        silenced: Set[str],
        found: Callable[[Finding], None],
        failed: Callable[[Rule, Exception], None],
    ) -> None:
        self.rules = list(rules)
        self.run = RunFacts()
        self._silenced = silenced
        """The names of rules that are off."""
        self._found = found
        self._failed = failed
        self._tracks: dict[tuple[str, str], _Track] = {}
        self._tracked: set[str] = set()
        """The names of the rules that have given a sign."""
        self._asked: dict[tuple[str, int, frozenset[str]], tuple[Rule, ...]] = {}
        self._unseen = 0
        """Steps right before this one that were not watched."""

    @property
    def findings(self) -> list[Finding]:
        """What was found, causes before consequences."""
        return ranked(
            [track.finding for track in self._tracks.values() if track.finding is not None],
        )

    def begins(self) -> None:
        """A training begins."""
        for rule in self._asked_at("begins"):
            self._take(rule, rule.begins, (self.run,), 0)

    def stepped(self, step: StepFacts) -> None:
        """An optimizer has stepped."""
        self.run.add(step)
        self._unseen = step.unseen
        is_deep = step.is_looked_at or any(loss.criteria for loss in step.losses)
        facts, is_look = (step, self.run), step.is_looked_at and not step.is_shared
        for rule in self._asked_at("stepped" if is_deep else "watched"):
            self._take(rule, rule.stepped, facts, step.training_step, is_look=is_look)
        self._unseen = 0

    def evaluated(self, evaluation: EvaluationFacts) -> None:
        """An evaluation has ended."""
        self.run.evaluations.append(evaluation)
        for rule in self._asked_at("evaluated"):
            self._take(rule, rule.evaluated, (evaluation, self.run), self.run.training_step)

    def ended(self) -> None:
        """The run is over."""
        self.run.is_over = True
        for rule in self._asked_at("ended"):
            self._take(rule, rule.ended, (self.run,), self.run.training_step)

    def _asked_at(self, moment: str) -> tuple[Rule, ...]:
        """The rules that look at a moment, without those that are off; kept, as each step asks.

        `watched` is `stepped` without those that only ask about looks.
        """
        key = (moment, len(self.rules), frozenset(self._silenced))
        if key not in self._asked:
            method = "stepped" if moment == "watched" else moment
            plain = getattr(Rule, method)
            self._asked[key] = tuple(
                rule
                for rule in self.rules
                if getattr(type(rule), method) is not plain
                and rule.name not in self._silenced
                and not (moment == "watched" and rule.cost == "look")
            )
        return self._asked[key]

    def _take(
        self,
        rule: Rule,
        ask: Callable[..., Iterable[Sign]],
        facts: tuple[Any, ...],
        step: int,
        *,
        is_look: bool = False,
    ) -> None:
        """Ask one rule. One that raises is reported, and not asked again."""
        try:
            told = list(ask(*facts))
        except Exception as error:
            self.rules.remove(rule)
            self._failed(rule, error)
            return
        if not told and rule.name not in self._tracked:
            return
        signs = {(rule.name, _key(sign)): sign for sign in told}
        for key, sign in signs.items():
            self._see(key, rule, sign, step)
        if is_look:
            for key, track in self._tracks.items():
                if key[0] == rule.name and key not in signs:
                    self._miss(track)

    def _see(self, key: tuple[str, str], rule: Rule, sign: Sign, step: int) -> None:
        track = self._tracks.get(key)
        if track is None:
            if len(self._tracks) >= MOST:
                return
            track = self._tracks[key] = _Track()
            self._tracked.add(rule.name)
        track.streak += 1
        track.began = step if track.streak == 1 else track.began
        track.clean = 0
        known = track.finding
        if known is not None:
            track.finding = replace(
                known,
                last_step=step,
                count=known.count + 1,
                is_active=True,
                text=sign.text,
                evidence=sign.evidence or known.evidence,
                severity=max(known.severity, sign.severity or rule.severity, key=lambda each: each.rank),
            )
        elif sign.is_sure or track.streak >= rule.patience:
            if self._unseen:
                sign = replace(
                    sign, evidence={**sign.evidence, "steps before it that were not watched": self._unseen}
                )
            track.finding = _finding(rule, sign, track.began, step)
            self._found(track.finding)

    @staticmethod
    def _miss(track: _Track) -> None:
        track.streak = 0
        track.clean += 1
        if track.finding is not None and track.clean >= CLEAN:
            track.finding = replace(track.finding, is_active=False)


def _key(sign: Sign) -> str:
    """The place by which findings of one rule are told apart."""
    where = sign.where
    if where.module or where.line:
        return f"{where.module}:{where.line}"
    return where.parameters[0] if where.parameters else ""


def _finding(rule: Rule, sign: Sign, first: int, step: int) -> Finding:
    return Finding(
        rule=rule.name,
        code=rule.code,
        severity=sign.severity or rule.severity,
        confidence=sign.confidence or rule.confidence,
        text=sign.text,
        where=sign.where,
        first_step=first,
        last_step=step,
        count=1 if sign.is_sure else rule.patience,
        evidence=sign.evidence,
        explains=(*rule.explains, *sign.explains),
        advice=(*sign.advice, *rule.advice),
        confirm=rule.confirm,
        silence=f"doctor off {rule.code}",
    )


def ranked(findings: list[Finding]) -> list[Finding]:
    """Causes first, what each explains right behind it.

    A note (`info`) that explains a warning or worse is its cause and becomes as severe. Among causes the
    worst comes first, a fact before a judgement, the earlier before the later.
    """
    causes = {id(finding): _cause_of(finding, findings) for finding in findings}
    promoted = {
        id(cause): max((f.severity for f in findings if causes.get(id(f)) is cause), key=lambda s: s.rank)
        for cause in causes.values()
        if cause is not None
    }
    roots = [finding for finding in findings if causes.get(id(finding)) is None]

    def severity(finding: Finding) -> Severity:
        return max(finding.severity, promoted.get(id(finding), finding.severity), key=lambda each: each.rank)

    roots.sort(key=lambda f: (-severity(f).rank, f.confidence != "exact", f.first_step, f.code))
    ordered: list[Finding] = []
    for root in roots:
        ordered.append(replace(root, severity=severity(root)))
        ordered += _below(root, findings, causes)
    return ordered


def _below(cause: Finding, findings: list[Finding], causes: dict[int, Finding | None]) -> list[Finding]:
    found = []
    for finding in sorted(findings, key=lambda each: (-each.severity.rank, each.first_step)):
        if causes.get(id(finding)) is cause:
            found.append(replace(finding, caused_by=cause.rule))
            found += _below(finding, findings, causes)
    return found


def _cause_of(finding: Finding, findings: list[Finding]) -> Finding | None:
    """The finding that explains another: a fact before a judgement, then the earliest. A note is the cause of
    what nothing worse explains.
    """
    able = [
        each
        for each in findings
        if finding.rule in each.explains
        and each.rule != finding.rule
        and finding.rule != each.caused_by
        and not _explains(finding, each)
        and not _is_too_late(each, finding)
    ]
    return min(
        able,
        key=lambda each: (
            not each.severity.rank,
            each.confidence != "exact",
            -each.severity.rank,
            each.first_step,
        ),
        default=None,
    )


def _explains(finding: Finding, other: Finding) -> bool:
    """Would they explain each other? Then a fact comes before a judgement, and the earlier before the later;
    neither is below the other if both begin together.
    """
    return other.rule in finding.explains and _order(finding) <= _order(other)


def _is_too_late(cause: Finding, finding: Finding) -> bool:
    """A fact is not the consequence of a judgement about later steps; those take a few steps to be made."""
    is_exact = finding.confidence == "exact" != cause.confidence
    return is_exact and cause.first_step > finding.first_step + LATE


def _order(finding: Finding) -> tuple[bool, int]:
    return finding.confidence != "exact", finding.first_step
