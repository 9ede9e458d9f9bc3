"""The report of a session: as words, as JSON, as a page."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerstep.automation.alerts import Alert
from layerstep.doctor.finding import Finding
from layerstep.doctor.health import Health
from layerstep.doctor.views import finding_view, findings_view, health_view
from layerstep.errors import UserError
from layerstep.exports.html import write_html
from layerstep.gradients.flow import FlowSummary
from layerstep.layers.architecture import Architecture
from layerstep.layers.architecture_view import architecture_view
from layerstep.profile.profiler import ProfileReport
from layerstep.render.html import to_html
from layerstep.render.screen import to_text
from layerstep.sessions.diagnostics import ModelPerformanceMetrics
from layerstep.sessions.plain_data import as_json, as_plain, write
from layerstep.sessions.tensor_record import TensorRecord
from layerstep.views import Column, Group, Notice, Plot, Table, Text, View

__all__ = ["Report"]

MOST_TENSORS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a session has seen. Prints and displays itself; `save(path)` writes JSON or HTML."""

    steps: int
    health: Health | None = None
    findings: tuple[Finding, ...] = ()
    gradients: FlowSummary | None = None
    tensors: tuple[TensorRecord, ...] = ()
    architecture: Architecture | None = None
    performance: tuple[ModelPerformanceMetrics, ...] = ()
    alerts: tuple[Alert, ...] = ()
    profile: ProfileReport | None = None
    curves: tuple[Plot, ...] = ()

    def summary(self) -> dict[str, Any]:
        """The report in a few entries."""
        severities = Counter(each.severity.value for each in self.findings)
        broken = [each.name for each in self.tensors if not each.is_finite]
        found: dict[str, Any] = {
            "steps": self.steps,
            "findings": dict(severities),
            "alerts": len(self.alerts),
            "tensors": len(self.tensors),
            "tensors_not_finite": len(broken),
        }
        if self.health is not None:
            found["health"] = self.health.score
        if self.gradients is not None:
            found["gradient_health"] = self.gradients.overall_health.value
        if self.architecture is not None:
            found["parameters"] = self.architecture.parameters
        if self.performance:
            found["last_loss"] = as_plain(self.performance[-1].loss)
        return found

    def to_json(self) -> str:
        """All of it."""
        data = {
            "summary": self.summary(),
            "health": None if self.health is None else self.health.score,
            "findings": [each.to_json() for each in self.findings],
            "gradients": self.gradients,
            "tensors": self.tensors,
            "architecture": self.architecture,
            "performance": self.performance,
            "alerts": self.alerts,
            "profile": self.profile,
        }
        return as_json(data)

    def save(self, path: str | Path) -> Path:
        """Write the report: a page if the name ends in `.html`, else JSON."""
        file = Path(path)
        if file.suffix.lower() not in (".html", ".json"):
            raise UserError(f"{file.name} is neither .json nor .html", 'report.save("report.json")')
        if file.suffix.lower() == ".json":
            return write(self.to_json(), file)
        write("", file)
        write_html(self.view(), file)
        return file

    def view(self) -> View:
        """The report as a view."""
        parts: list[View] = list(self.curves)
        if self.health is not None:
            parts += [finding_view(each, whole=True) for each in self.findings if not each.caused_by]
            parts.append(findings_view(self.findings))
            parts.append(health_view(self.health, self.steps))
        if self.gradients is not None:
            advice = " ".join(self.gradients.recommendations)
            parts.append(Text(f"gradients: {self.gradients.overall_health.value}. {advice}"))
        if self.tensors:
            parts.append(_tensors(self.tensors))
        if self.architecture is not None:
            parts.append(architecture_view(self.architecture))
        if self.profile is not None:
            parts.append(Text(str(self.profile)))
        return Group(tuple(parts)) if parts else Notice("nothing was watched")

    def __str__(self) -> str:
        return to_text(self.view())

    def _repr_html_(self) -> str:
        return to_html(self.view())


def _tensors(tensors: tuple[TensorRecord, ...]) -> Table:
    """Those that are not finite first, then the last ones."""
    broken = [each for each in tensors if not each.is_finite]
    shown = (broken + [each for each in reversed(tensors) if each.is_finite])[:MOST_TENSORS]
    rows = tuple(
        (
            each.name,
            "×".join(map(str, each.shape)),
            *("-" if value is None else f"{value:.3g}" for value in (each.mean, each.std)),
            str(each.nan),
            str(each.inf),
        )
        for each in shown
    )
    columns = (
        Column("tensor", "path"),
        Column("shape", "dim"),
        *(Column(name, right=True) for name in ("mean", "std", "nan", "inf")),
    )
    more = len(tensors) - len(shown)
    note = f"{more:,} more are in the JSON report" if more else ""
    return Table(columns, rows, title=f"{len(tensors):,} tensors", note=note)
