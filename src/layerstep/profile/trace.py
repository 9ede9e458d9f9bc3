"""The steps of a profile as a Chrome trace, for Perfetto and chrome://tracing. One track for each depth.

Perfetto drops a span that begins in another one on its track and ends after it, so the backward of a
call, which the pass may reach more than once, is cut where the pass was elsewhere.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerstep.profile.call_times import CallTime, StepTime
from layerstep.profile.report import Measured, Row

__all__ = ["chrome_trace"]

PROCESS = 1
STEPS, MARKS, OUTSIDE, DEPTH = 1, 2, 3, 4
"""Tracks; calls at depth 1 are one after `DEPTH`. A track with the number of its process comes first."""

Event = dict[str, Any]


def chrome_trace(measured: Measured, said: Iterable[tuple[int, str]] = ()) -> dict[str, Any]:
    """The document: a complete event ("X") for each call and direction, an instant ("i") for each stop.

    Spans have `own_us`, their time without the calls in them. These, the time outside the model and
    `profiler_us` add up to the step.
    """
    marks = sorted(said) if measured.is_host else []  # a device has a clock of its own
    begin = min([step.begin for step in measured.times[:1]] + [at for at, _ in marks[:1]], default=0)
    events: list[Event] = []
    deepest = -1
    rows = {row.path: row for row in measured.rows}
    for number, (step, shift) in enumerate(_placed(measured.times, begin), start=1):
        drawing = _Drawing(measured, step, shift, rows)
        deepest = max([deepest, *drawing.depths])
        events += [*drawing.step(f"{measured.word} {number}"), *drawing.forward(), *drawing.backward()]
    for at, text in marks:
        event = {"name": text, "cat": "mark", "ph": "i", "s": "t", "ts": (at - begin) / 1e3}
        events.append({**event, "pid": PROCESS, "tid": MARKS})
    names = {STEPS: "steps", MARKS: "stops and findings", OUTSIDE: "outside the model"}
    names |= {DEPTH + depth: f"depth {depth}" for depth in range(deepest + 1)}
    if not marks:
        del names[MARKS]
    document = {"traceEvents": [*_heads(names, measured.device), *events], "displayTimeUnit": "ms"}
    return {**document, "otherData": {"device": measured.device}}


def _placed(steps: Iterable[StepTime], begin: int) -> Iterator[tuple[StepTime, int]]:
    """Each step and the offset of its times.

    On a device each step begins at zero, so they are put in a row.
    """
    last = 0
    for step in steps:
        shift = min(begin, step.begin - last)
        last = step.end - shift
        yield step, shift


def _heads(names: dict[int, str], device: str) -> Iterator[Event]:
    yield _head("process_name", STEPS, name=f"{Path(sys.argv[0]).name or 'python'} on {device}")
    for track, name in names.items():
        yield _head("thread_name", track, name=name)
        yield _head("thread_sort_index", track, sort_index=track)


def _head(kind: str, track: int, **args: Any) -> Event:
    return {"name": kind, "ph": "M", "pid": PROCESS, "tid": track, "args": args}


@dataclass(slots=True)
class _Stay:
    """An unbroken stay of the backward pass in a call and the calls in it."""

    call: int
    since: int
    until: int
    own: int = 0


class _Drawing:
    """The events of one step."""

    def __init__(self, measured: Measured, step: StepTime, shift: int, rows: dict[str, Row]) -> None:
        self._measured, self._step, self._shift, self._rows = measured, step, shift, rows
        self.depths: list[int] = []
        self._roots: list[int] = []
        for at, call in enumerate(step.calls):
            has_caller = call.parent >= 0
            self.depths.append(self.depths[call.parent] + 1 if has_caller else 0)
            self._roots.append(self._roots[call.parent] if has_caller else at)
        self._times_called = Counter(zip(self._roots, (call.key for call in step.calls), strict=True))

    def step(self, name: str) -> Iterator[Event]:
        step = self._step
        args = {"samples": step.samples, "tokens": step.tokens, "profiler_us": step.tool / 1e3}
        yield self._span(name, "step", STEPS, (step.begin, step.end), args)
        for where, since, until in step.spans:
            yield self._span(where, "outside", OUTSIDE, (since, until), {})
        for unit, count in (("samples", step.samples), ("tokens", step.tokens)):
            if count and step.total:
                event = {"name": "throughput", "ph": "C", "pid": PROCESS, "ts": self._at(step.begin)}
                yield {**event, "args": {f"{unit}/s": count / step.total * 1e9}}

    def forward(self) -> Iterator[Event]:
        for index, call in enumerate(self._step.calls):
            category = "recomputed" if call.is_recomputation else "forward"
            own = call.backward - _in_nodes(call) if call.is_recomputation else call.forward
            times = call.since, call.until
            args = self._about(index, own)
            yield self._span(args["path"], category, DEPTH + self.depths[index], times, args)

    def backward(self) -> Iterator[Event]:
        for stay in self._stays():
            call = self._step.calls[stay.call]
            seen = sum(until - since for since, until in call.spans)
            args = self._about(stay.call, _in_nodes(call) * stay.own / seen if seen else 0.0)
            track = DEPTH + self.depths[stay.call]
            yield self._span(args["path"], "backward", track, (stay.since, stay.until), args)

    def _stays(self) -> list[_Stay]:
        """Go through the backward pass in time; each piece extends the stays of its call and its callers."""
        calls = self._step.calls
        pieces = [(*span, at) for at, call in enumerate(calls) for span in call.spans]
        pieces += [(call.since, call.until, -1) for call in calls if call.parent < 0]
        pieces += [(since, until, -1) for _, since, until in self._step.spans]
        done: list[_Stay] = []
        running: list[_Stay] = []
        for since, until, owner in sorted(pieces):
            chain = self._callers(owner)
            same = 0
            while same < min(len(chain), len(running)) and running[same].call == chain[same]:
                same += 1
            done += running[same:]
            running[same:] = [_Stay(call, since, until) for call in chain[same:]]
            for stay in running:
                stay.until = until
            if running:
                running[-1].own += until - since
        return [stay for stay in [*done, *running] if stay.until > stay.since]

    def _callers(self, index: int) -> list[int]:
        chain: list[int] = []
        while index >= 0:
            chain.insert(0, index)
            index = self._step.calls[index].parent
        return chain

    def _about(self, index: int, own: float) -> dict[str, Any]:
        key = self._step.calls[index].key
        module = self._measured.modules[key]
        args: dict[str, Any] = {"path": module.path, "type": module.kind, "own_us": own / 1e3}
        if module.parameters:
            args["parameters"] = module.parameters
        row = self._rows.get(module.path)
        if row is not None and row.flops and self._times_called[self._roots[index], key] == 1:
            args["forward_FLOP"] = row.flops  # it is counted by path, so of one that is called once
        return args

    def _span(
        self, name: str, category: str, track: int, times: Sequence[int], args: dict[str, Any]
    ) -> Event:
        event: Event = {"name": name, "cat": category, "ph": "X", "ts": self._at(times[0])}
        event["dur"] = max(0, times[1] - times[0]) / 1e3
        return {**event, "pid": PROCESS, "tid": track, "args": args}

    def _at(self, time: int) -> float:
        return (time - self._shift) / 1e3


def _in_nodes(call: CallTime) -> float:
    """The part of a call's backward that was in autograd nodes. The rest was its recomputation."""
    if not call.is_recomputation:
        return call.backward
    return min(call.backward, sum(until - since for since, until in call.spans))
