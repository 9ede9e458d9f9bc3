from __future__ import annotations

import time

import torch

from layerstep.arguments import Form, Given
from layerstep.engine.session import Session
from layerstep.memory.census import Census, census_of
from layerstep.memory.holders import holder_of
from layerstep.memory.leak_lines import growing_line
from layerstep.memory.leaks import Leak, find_leaks, growth
from layerstep.registry import command
from layerstep.tensors.autograd_graph import size_of
from layerstep.tensors.bars import sparkline
from layerstep.tensors.format import human_bytes
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import shape_line
from layerstep.tensors.summary import summarize
from layerstep.views import Column, Fields, Group, Notice, Span, Table, Text, View

MOST = 50
SECONDS = 5.0
"""Then no more holders are searched for: each search goes through every object of the process."""
BARS = 24
COUNTS = 6
"""Three steps must have left something behind that has outlived another one."""


@command(
    "leaks",
    group="cost",
    args=(Form(""), Form("on"), Form("off")),
    examples=("leaks", "leaks on", "leaks off"),
)
def leaks(session: Session, given: Given) -> View:
    """Find tensors that pile up, and what holds them.

    `leaks on` counts the live tensors at the end of each training step (without an optimizer, at each
    forward of the main model). `leaks` then shows what grows: the tensors that outlive their step, in step
    after step. It names what holds them (a variable, an attribute, a container), the line that adds to it,
    and the autograd graph that they keep alive.

    `record WHERE` notes what each forward makes; an output that outlives its forward is listed with its
    bytes and with what holds it. A tensor that several layers return counts once in the sum.
    """
    census = census_of(session)
    if given.form == "on":
        census.start()
        hint = "`leaks` shows what piles up, after some steps"
        return Notice("counting the live tensors at the end of each step", hint, level="good")
    if given.form == "off":
        if not census.is_on:
            return Notice("live tensors are not being counted")
        census.stop()
        return Notice(f"the census is off; {len(census.counts):,} counts are kept", level="good")
    views: list[View] = []
    if census.was_on:
        views.append(_counted(session, census))
    if session.run.recordings.everything():
        views.append(_recorded(session))
    if not views:
        return Notice(
            "nothing is counted or recorded",
            "`leaks on` counts live tensors step by step; `record **` notes what each forward makes",
        )
    return views[0] if len(views) == 1 else Group(tuple(views))


def _counted(session: Session, census: Census) -> View:
    """What the census says."""
    census.is_read = True
    counts = list(census.counts)
    unit = census.unit
    if len(counts) < COUNTS:
        return Notice(
            f"too few {unit}s to tell: {len(counts)} of at least {COUNTS} counts are taken",
            f"let it run some {unit}s more" if census.is_on else "",
        )
    with observing(), census.looking():
        found = find_leaks(census, session.run.models)
        grows = growth(counts)
        if not found and grows is not None and grows[1] > 0:
            return Group((_course(census, grows), _replaced(session, census)))
    if not found:
        bars = sparkline([count.bytes for count in counts], width=BARS)
        text = f"nothing piles up over {counts[-1].step - counts[0].step + 1} {unit}s  {bars}"
        return Notice(text, f"{counts[-1].tensors:,} tensors, {human_bytes(counts[-1].bytes)}", level="good")
    return Group((_course(census, grows), *(_one(leak, unit) for leak in found)))


def _course(census: Census, grows: tuple[float, float] | None) -> Notice:
    counts, unit = list(census.counts), census.unit
    last = counts[-1]
    bars = sparkline([count.bytes for count in counts], width=BARS)
    text = f"{last.tensors:,} tensors, {human_bytes(last.bytes)} after {unit} {last.step}  {bars}"
    more = (
        f"{grows[0]:+.0f} tensors, {human_bytes(round(max(0.0, grows[1])))} more each {unit}" if grows else ""
    )
    return Notice(text, more, level="warn")


def _one(leak: Leak, unit: str) -> Fields:
    word = "tensor" if leak.tensors == 1 else "tensors"
    title = f"{leak.tensors:,} {word} like {leak.first}, {human_bytes(leak.bytes)}, of {leak.steps} {unit}s"
    items = [("held by", leak.holder)]
    if leak.line is not None:
        items.append(("grows at", str(leak.line)))
    if leak.nodes:
        each = "behind it" if leak.tensors == 1 else "behind them"
        what = (
            f"{human_bytes(leak.graph_bytes)} of activations"
            if leak.graph_bytes
            else "no activations any more"
        )
        text = f"{leak.nodes:,} nodes {each} are kept alive, and with them {what}"
        items += [("graph", text), ("instead", "keep its number, .item(), or cut the graph, .detach()")]
    return Fields((Span(title, "warn"),), tuple((label, Text(text)) for label, text in items))


def _replaced(session: Session, census: Census) -> View:
    """Nothing outlives its step and still there is more: something is replaced by something larger."""
    largest = sorted(census.others(), key=size_of, reverse=True)[:3]
    holders = [(tensor, holder_of(tensor)) for tensor in largest]
    for tensor, holder in holders:
        line = growing_line(holder, session.run.models)
        if line is not None:
            size = f"{shape_line(tensor)}, {human_bytes(size_of(tensor))}"
            title = f"{size}: replaced by a larger one each {census.unit}"
            items = (("held by", Text(holder)), ("grows at", Text(str(line))))
            return Fields((Span(title, "warn"),), items)
    rows = tuple((shape_line(tensor), human_bytes(size_of(tensor)), holder) for tensor, holder in holders)
    columns = (Column("largest"), Column("bytes", right=True), Column("held by", "warn"))
    return Table(columns, rows, note="no tensor outlives its step: one is replaced by a larger one")


def _recorded(session: Session) -> View:
    """Recorded outputs that are still there."""
    entries = session.run.recordings.everything()
    current = max(entry.forward for entry in entries)
    owned = _owned(session)
    alive: dict[str, list[torch.Tensor]] = {}
    for entry in entries:
        for tensor in (reference() for reference in entry.alive):
            if tensor is not None and entry.forward < current and id(tensor) not in owned:
                alive.setdefault(entry.path, []).append(tensor)
    del entries
    return _table(alive, current)


def _owned(session: Session) -> set[int]:
    """Parameters and buffers stay; that is no leak."""
    roots = [root for model in session.run.models if (root := model.root) is not None]
    return {id(t) for root in roots for t in (*root.parameters(), *root.buffers())}


def _table(alive: dict[str, list[torch.Tensor]], current: int) -> View:
    rows: list[tuple[str, ...]] = []
    with observing():
        sizes = {id(t): summarize(t, limit=0).nbytes or 0 for tensors in alive.values() for t in tensors}
        end, holders = time.monotonic() + SECONDS, dict[int, str]()
        for path, tensors in list(alive.items())[:MOST]:
            first = tensors[0]
            if id(first) not in holders and time.monotonic() < end:
                holders[id(first)] = holder_of(first)
            size = human_bytes(sum(sizes[id(tensor)] for tensor in tensors))
            holder = holders.get(id(first), "not searched for: it takes too long")
            rows.append((path, str(len(tensors)), shape_line(first), size, holder))
    if not rows:
        return Notice(f"no recorded output outlived its forward, up to forward {current}", level="good")
    columns = (
        Column("path", "path"),
        Column("alive", right=True),
        Column("first"),
        Column("bytes", right=True),
        Column("held by", "warn"),
    )
    word = "tensor" if len(sizes) == 1 else "tensors"
    note = f"{len(sizes):,} {word} of earlier forwards, {human_bytes(sum(sizes.values()))}"
    if len(alive) > MOST:
        note += f"; {len(alive) - MOST:,} more paths"
    return Table(columns, tuple(rows), note=note)
