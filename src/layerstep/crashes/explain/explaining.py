"""Why an exception was raised: in one line, with what the module got and has, and the likely fix.

Each family of mistakes has a file of its own, which says by which messages it is known.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import replace

import layerstep.crashes.explain as families
from layerstep._torch.tensors import is_tensor
from layerstep.crashes.explain.explanation import Explainer, Explanation, explainers_of
from layerstep.crashes.explain.facts import Facts, facts_of
from layerstep.crashes.traceback_calls import Crash
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import shape_line, tensors_in

__all__ = ["explain", "explain_facts", "note_of"]

MOST = 8

for _family in sorted(each.name for each in pkgutil.iter_modules(families.__path__)):
    if _family not in ("explain", "shown"):
        importlib.import_module(f"{families.__name__}.{_family}")


def explain(crash: Crash) -> Explanation:
    """Explain an exception by everything that is known of where it was raised."""
    try:
        with observing():
            return explain_facts(facts_of(crash))
    except Exception:  # a module that is half made, a frame without source: the message itself must do
        return Explanation(_plain(Facts(crash.error)), is_plain=True)


def explain_facts(facts: Facts) -> Explanation:
    """The first explanation that fits; where none does, the message itself with what went in."""
    for explainer, found in explainers_of(facts.message):
        explanation = _attempted(explainer, facts, found)
        if explanation is not None:
            break
    else:
        explanation = Explanation(_plain(facts), is_plain=True)
    return replace(explanation, got=tuple(_got(facts)), has=tuple(_has(facts)))


def _attempted(explainer: Explainer, facts: Facts, found: re.Match[str]) -> Explanation | None:
    try:
        return explainer(facts, found)
    except Exception:  # an odd tensor, a module with an attribute that raises: the message itself must do
        return None


def _plain(facts: Facts) -> str:
    first = facts.message.partition("\n")[0]
    text = f"{type(facts.error).__name__}: {first}" if first else type(facts.error).__name__
    return f"{facts.subject}: {text}" if facts.subject and facts.is_layer else text


def _got(facts: Facts) -> Iterator[tuple[str, str]]:
    """The tensors that went in: into the layer, or into the operation of the user's own."""
    if facts.is_layer or not facts.tensors:
        items = list(facts.given())
    else:
        items = [(operand.name, operand.value) for operand in facts.operands]
    for name, value in items[:MOST]:
        if is_tensor(value) or tensors_in(value, most=1):
            yield name, shape_line(value)


def _has(facts: Facts) -> Iterator[tuple[str, str]]:
    if facts.module is not None and hasattr(facts.module, "_parameters"):
        own = [*facts.module.named_parameters(recurse=False), *facts.module.named_buffers(recurse=False)]
        yield from ((name, shape_line(value)) for name, value in own[:MOST])


def note_of(crash: Crash) -> str:
    """The explanation as a note on the exception: where, why, what to do. Empty if nothing is to be added."""
    explanation = explain(crash)
    frame = crash.inner
    if explanation.is_plain and frame is None:
        return ""
    where = f"in {frame.path} ({type(frame.module).__name__}): " if frame is not None else ""
    at = f"\n  at {crash.site}" if crash.site is not None else ""
    fix = f"\n  try: {explanation.fix}" if explanation.fix else ""
    return f"{where}{explanation.cause}{at}{fix}"
