"""The steps of a profile as a Chrome trace: what Perfetto and chrome://tracing open. One track a depth."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from layerstep.analysis.profile import Measured
from layerstep.analysis.timing import StepTime

__all__ = ["chrome_trace"]

PROCESS = 1
STEPS = 0
"""The track of whole steps; that of calls at depth 0 is the next but one."""
OUTSIDE = 1


def chrome_trace(measured: Measured, said: Iterable[tuple[int, str]] = ()) -> dict[str, Any]:
    """The document: a complete event ("X") for each call and each way, an instant ("i") for each stop."""
    events: list[dict[str, Any]] = [_name(STEPS, "steps"), _name(OUTSIDE, "outside of the model")]
    deepest = -1
    for number, step in enumerate(measured.times, start=1):
        name = f"{measured.word} {number}"
        args = {"samples": step.samples, "tokens": step.tokens, "profiler_us": step.tool / 1e3}
        events.append(_span(name, "step", STEPS, step.begin, step.end, **args))
        events += [_span(where, "outside", OUTSIDE, since, until) for where, since, until in step.spans]
        depths = _depths(step)
        deepest = max([deepest, *depths])
        events += _calls(measured, step, depths)
    events += [_name(depth + 2, f"depth {depth}") for depth in range(deepest + 1)]
    events += [
        {"name": text, "cat": "stop", "ph": "i", "s": "p", "ts": at / 1e3, "pid": PROCESS, "tid": STEPS}
        for at, text in said
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"device": measured.device}}


def _depths(step: StepTime) -> list[int]:
    depths: list[int] = []
    for call in step.calls:
        depths.append(depths[call.parent] + 1 if call.parent >= 0 else 0)
    return depths


def _calls(measured: Measured, step: StepTime, depths: list[int]) -> list[dict[str, Any]]:
    events = []
    back: list[list[int]] = [[since for since, _ in call.spans][:1] for call in step.calls]
    for call, found in zip(step.calls, back, strict=True):
        if call.spans:
            found[:] = [min(since for since, _ in call.spans), max(until for _, until in call.spans)]
    for index in range(len(step.calls) - 1, -1, -1):
        parent = step.calls[index].parent
        if parent >= 0 and back[index]:
            both = [*back[parent], *back[index]]
            back[parent] = [min(both), max(both)]
    for call, depth, way in zip(step.calls, depths, back, strict=True):
        module = measured.modules[call.key]
        category = "recomputed" if call.is_again else "forward"
        args = {"type": module.kind, "own_us": (call.forward or call.backward) / 1e3}
        events.append(_span(module.path, category, depth + 2, call.since, call.until, **args))
        if way:
            args = {"type": module.kind, "own_us": call.backward / 1e3}
            events.append(_span(module.path, "backward", depth + 2, way[0], way[1], **args))
    return events


def _span(name: str, category: str, track: int, since: int, until: int, **args: Any) -> dict[str, Any]:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": since / 1e3,
        "dur": max(0, until - since) / 1e3,
        "pid": PROCESS,
        "tid": track,
        "args": args,
    }


def _name(track: int, name: str) -> dict[str, Any]:
    return {"name": "thread_name", "ph": "M", "pid": PROCESS, "tid": track, "args": {"name": name}}
