"""A finding: what is wrong, where, since when, on which evidence, and what to do about it.

The screen, JSON, HTML and the web page show this one class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["SCHEMA", "Confidence", "Finding", "Number", "Place", "Severity", "Sign"]

SCHEMA = 1
"""The version of the JSON form."""

Number = float | int | str | tuple[float, ...]
"""Evidence: a number, a series of numbers, or a word."""


class Severity(StrEnum):
    """How bad a finding is. A healthy run has none of `WARNING` or worse."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for the mildest."""
        return list(Severity).index(self)


class Confidence(StrEnum):
    """Whether a finding is a fact or a judgement on numbers."""

    EXACT = "exact"
    STATISTICAL = "statistical"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fault is: parameters, a module, a line of the program."""

    parameters: tuple[str, ...] = ()
    module: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        shown = ", ".join(self.parameters[:3])
        if len(self.parameters) > 3:
            shown += f" and {len(self.parameters) - 3} more"
        line = f"{self.file.rpartition('/')[2]}:{self.line}" if self.file else ""
        return "  ".join(part for part in (shown or self.module, line) if part)


@dataclass(frozen=True, slots=True)
class Sign:
    """What a rule sees at one step. The diagnosis makes findings of signs: one for each rule and place."""

    text: str
    """What is wrong, in one line."""
    where: Place = field(default_factory=Place)
    evidence: Mapping[str, Number] = field(default_factory=dict)
    severity: Severity | None = None
    """Other than the rule's own."""
    advice: tuple[str, ...] = ()
    """Advice for this case, before the rule's own."""
    is_sure: bool = False
    """It is a finding at once, whatever patience the rule has."""
    confidence: Confidence | None = None
    """Other than the rule's own."""
    explains: tuple[str, ...] = ()
    """The rules whose findings follow in this case, besides those that follow in every one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that was found."""

    rule: str
    """The name of the rule, `stale-gradients`."""
    code: str
    """Its short name, `R2`."""
    severity: Severity
    confidence: Confidence
    text: str
    where: Place
    first_step: int
    last_step: int
    count: int = 1
    """In how many of the steps that were looked at it was seen."""
    is_active: bool = True
    """False after it has not been seen for some time."""
    evidence: Mapping[str, Number] = field(default_factory=dict)
    explains: tuple[str, ...] = ()
    """The rules whose findings follow from this one."""
    caused_by: str = ""
    """The rule whose finding explains this one; it is then shown under that one."""
    advice: tuple[str, ...] = ()
    confirm: str = ""
    """The command that proves it."""
    silence: str = ""
    """The command that turns the rule off."""
    ranks: tuple[int, ...] = ()
    """The ranks that found it, in a run of several."""

    @property
    def steps(self) -> str:
        """`step 3`, `steps 3 to 57`."""
        if self.first_step == self.last_step:
            return f"step {self.first_step}"
        return f"steps {self.first_step} to {self.last_step}"

    def to_json(self) -> dict[str, Any]:
        """Plain data, for a file or a front end."""
        place = self.where
        return {
            "schema": SCHEMA,
            "id": self.code,
            "name": self.rule,
            "severity": self.severity.value,
            "confidence": self.confidence.value,
            "state": "active" if self.is_active else "cleared",
            "text": self.text,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "count": self.count,
            "where": {
                "params": list(place.parameters),
                "module": place.module,
                "file": place.file,
                "line": place.line,
            },
            "evidence": {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in self.evidence.items()
            },
            "explains": list(self.explains),
            "caused_by": self.caused_by,
            "advice": list(self.advice),
            "confirm": self.confirm,
            "silence": self.silence,
            "ranks": list(self.ranks),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """The finding that `to_json` wrote."""
        where = data["where"]
        return cls(
            rule=data["name"],
            code=data["id"],
            severity=Severity(data["severity"]),
            confidence=Confidence(data["confidence"]),
            text=data["text"],
            where=Place(tuple(where["params"]), where["module"], where["file"], where["line"]),
            first_step=data["first_step"],
            last_step=data["last_step"],
            count=data["count"],
            is_active=data["state"] == "active",
            evidence={
                key: tuple(value) if isinstance(value, list) else value
                for key, value in data["evidence"].items()
            },
            explains=tuple(data["explains"]),
            caused_by=data["caused_by"],
            advice=tuple(data["advice"]),
            confirm=data["confirm"],
            silence=data["silence"],
            ranks=tuple(data["ranks"]),
        )
