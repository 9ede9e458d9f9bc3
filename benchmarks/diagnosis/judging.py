"""Runs a case bare, under the doctor, and under published thresholds, and judges what was said."""

from __future__ import annotations

import contextlib
import fnmatch
import gc
import hashlib
import inspect
import io
import linecache
import logging
import math
import random
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any
from unittest.mock import patch

import numpy
import torch
from torch import Tensor, nn

from benchmarks.diagnosis.cases import Case, Fault, Healthy, Train
from benchmarks.diagnosis.published import recording
from layerstep.doctor.finding import Finding, Severity
from layerstep.doctor.watch import watching
from layerstep.views import Notice

__all__ = ["Judged", "Played", "is_same", "judge", "play"]

ROOTS = {
    "model",
    "net",
    "convnet",
    "gpt",
    "tagger",
    "regressor",
    "autoencoder",
    "gpt2lmheadmodel",
    "convnext",
    "translator",
    "tabularnet",
    "graphnet",
}
"""What the whole model of a program may be called."""
QUICK = 0.7
"""The share of the steps of a quick run."""


@dataclass(frozen=True, slots=True)
class Played:
    """What a training left behind."""

    losses: list[float]
    digest: str
    """Of all parameters and buffers."""
    seconds: float
    raised: str = ""

    @property
    def falls_to(self) -> float:
        """The end of the losses over their beginning."""
        first, last = self.losses[:3], self.losses[-max(1, len(self.losses) // 10) :]
        if not first or not sum(first):
            return math.nan
        return (sum(last) / len(last)) / (sum(first) / len(first))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One run of a case, as a line of JSON holds it."""

    case: str
    kind: str
    program: str
    is_held_out: bool
    seed: int
    level: str
    expected: tuple[str, ...] = ()
    first: str = ""
    """The rule of the first cause."""
    place: str = ""
    line: str = ""
    text: str = ""
    is_right: bool = False
    is_localised: bool = False
    is_among: bool = False
    """Whether a right rule is among the findings, first or not."""
    warnings: int = 0
    """Findings of severity warning or worse."""
    findings: list[dict[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    """What the doctor said about bugs of its own."""
    is_bit_equal: bool | None = None
    anomaly: bool = False
    """Whether `detect_anomaly` raised."""
    published: dict[str, float] = field(default_factory=dict)
    falls_to: float = math.nan
    has_learned: bool | None = None
    steps: int = 0
    seconds: float = 0.0
    watched_seconds: float = 0.0
    raised: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(case: Case, seed: int, *, level: str, quick: bool = False, others: bool = True) -> Judged:
    """Run a case with this seed. `others`: also under published thresholds and `detect_anomaly`."""
    steps = _steps(case, quick)
    bare = play(case.load(), seed, steps)
    notices: list[str] = []
    train = case.load()
    with watching(level) as doctor:
        doctor.doctor.session.listen(lambda message: _keep_trouble(message.view, notices))
        watched = play(train, seed, steps)
    findings = doctor.findings
    alarms, anomaly = _published(case, seed, steps) if others else ({}, False)
    is_fault = isinstance(case, Fault)
    first = findings[0] if findings and not findings[0].caused_by else None
    return Judged(
        case=case.name,
        kind="fault" if is_fault else "healthy",
        program=case.program,
        is_held_out=case.is_held_out,
        seed=seed,
        level=level,
        expected=case.rules if isinstance(case, Fault) else (),
        first=first.rule if first else "",
        place=str(first.where) if first else "",
        line=_line(first) if first else "",
        text=first.text if first else "",
        is_right=isinstance(case, Fault) and first is not None and first.rule in case.rules,
        is_localised=isinstance(case, Fault) and first is not None and _is_at(case, first),
        is_among=isinstance(case, Fault) and any(each.rule in case.rules for each in findings),
        warnings=sum(each.severity.rank >= Severity.WARNING.rank for each in findings),
        findings=[_short(each) for each in findings],
        notices=notices,
        is_bit_equal=is_same(bare, watched),
        anomaly=anomaly,
        published=alarms,
        falls_to=bare.falls_to,
        has_learned=_has_learned(case, bare) if not quick else None,
        steps=len(bare.losses),
        seconds=bare.seconds,
        watched_seconds=watched.seconds,
        raised=bare.raised,
    )


def _has_learned(case: Case, played: Played) -> bool | None:
    return played.falls_to < case.falls_to if isinstance(case, Healthy) else None


def _keep_trouble(view: object, notices: list[str]) -> None:
    if isinstance(view, Notice) and view.level in ("warn", "error"):
        notices.append(f"{view.text} {view.hint}".strip()[:300])


def _steps(case: Case, quick: bool) -> int | None:
    steps = case.steps or inspect.signature(case.load()).parameters["steps"].default
    return max(10, round(steps * QUICK)) if quick else steps


def play(train: Train, seed: int, steps: int | None) -> Played:
    """Run a training in silence. An exception of its own ends it and is noted."""
    raised, losses, left = "", [], ()
    with _quietly():
        random.seed(seed)
        numpy.random.seed(seed)
        begun = time.perf_counter()
        try:
            losses, left = train(seed=seed, steps=steps)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"[:200]
        seconds = time.perf_counter() - begun
    played = Played([float(loss) for loss in losses], _digest(left), seconds, raised)
    del left
    gc.collect()
    return played


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """No warnings, no output; one thread; the global state of torch as it was before."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
            logging.disable(logging.NOTSET)


def _published(case: Case, seed: int, steps: int | None) -> tuple[dict[str, float], bool]:
    """The share of steps in which each preset alarms, and whether `detect_anomaly` raised."""
    with recording() as recorder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The stack at each node is for its message, which is not read; formatting it takes most of the time.
        with torch.autograd.detect_anomaly(check_nan=True), patch("torch.fx.traceback.format_stack", list):
            played = play(case.load(), seed, steps)
    if not played.raised:
        recorder.end(played.losses)
        return recorder.shares(), False
    anomaly = "returned nan values" in played.raised
    with recording() as recorder:
        recorder.end(play(case.load(), seed, steps).losses)
    return recorder.shares(), anomaly


def _tensors(left: Any) -> Iterable[Tensor]:
    if isinstance(left, Tensor):
        yield left
    elif isinstance(left, nn.Module):
        yield from left.state_dict().values()
    elif isinstance(left, list | tuple):
        for each in left:
            yield from _tensors(each)


def _digest(left: Any) -> str:
    total = hashlib.sha256()
    for tensor in _tensors(left):
        data = tensor.detach().contiguous()
        data = torch.view_as_real(data) if data.is_complex() else data
        total.update(str((data.dtype, tuple(data.shape))).encode())
        total.update(data.flatten().view(torch.uint8).numpy().tobytes() if data.numel() else b"")
    return total.hexdigest()


def is_same(one: Played, two: Played) -> bool:
    """Bit by bit; NaN is equal to NaN."""
    return repr(one.losses) == repr(two.losses) and one.digest == two.digest and one.raised == two.raised


def _line(finding: Finding) -> str:
    where = finding.where
    return linecache.getline(where.file, where.line).strip() if where.file else ""


def _is_at(fault: Fault, finding: Finding) -> bool:
    """Whether a finding names a right line, or right parameters for the most part, or a right module."""
    if _line(finding) in fault.lines:
        return True
    where = finding.where
    named = [name for name in where.parameters if _matches(name, fault.names)]
    if where.parameters and 2 * len(named) >= len(where.parameters):
        return True
    return bool(where.module) and _matches(where.module, fault.names)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    """A name may begin with that of its model."""
    tails = {name, name.partition(".")[2]} - {""}
    for pattern in patterns:
        if pattern == "@":
            if name.lower() in ROOTS:
                return True
        elif any(fnmatch.fnmatchcase(tail, pattern) for tail in tails):
            return True
    return False


def _short(finding: Finding) -> dict[str, Any]:
    """What a reader of the raw results needs of a finding."""
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "caused_by": finding.caused_by,
        "steps": [finding.first_step, finding.last_step],
        "where": str(finding.where),
        "line": _line(finding),
        "text": finding.text,
    }
