from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from layerstep.profile.advice import Advice
from layerstep.profile.compare import LEAST_EFFECT, ProfileComparison, TimeChange
from layerstep.profile.report import BETWEEN, UNSEEN, Measured, Row, StepSpread, by_type
from layerstep.profile.state import ProfileState
from layerstep.views import Column, Fields, Figure, Group, Node, Notice, Span, Table, Text, Tree, View

__all__ = ["SORTS", "advice_view", "comparison", "flame", "milliseconds", "percent", "report", "tree"]

SORTS: dict[str, Callable[[Measured, Row], float]] = {
    "own": lambda measured, row: measured.typical(row.own),
    "total": lambda measured, row: measured.typical(row.total),
    "forward": lambda measured, row: measured.typical(row.forward),
    "backward": lambda measured, row: measured.typical(row.backward),
    "calls": lambda measured, row: 0.0 if row.is_outside else measured.typical(row.calls),
    "params": lambda measured, row: row.parameters,
    "flops": lambda measured, row: row.flops,
    "rate": lambda measured, row: measured.rate(row),
    "saved": lambda measured, row: row.saved,
    "peak": lambda measured, row: row.needed,
}
"""What each orders by, of a typical step; where that is equal, by the own time."""
BAR = 40
ROWS = 25
MODULES = 20
SLOWER = 0.1
_EIGHTHS = " ▏▎▍▌▋▊▉"


def milliseconds(seconds: float) -> str:
    """As few characters as tell two modules apart."""
    value = 1e3 * seconds
    if value < 0.0995:
        text = f"{value:.2g}" if value >= 0.001 else f"{value:.1g}" if value >= 0.0001 else "0"
    else:
        text = f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return Figure(text, value, "ms")


def count(value: float, what: str = "") -> str:
    """1.05M: at most four characters and a unit."""
    rest = value
    for unit in ("", "k", "M", "G", "T"):
        if rest < 999.5:
            return Figure(f"{rest:.3g}{unit}" if rest else "", value, what)
        rest /= 1000
    return Figure(f"{rest:.3g}P", value, what)


def percent(part: float) -> str:
    """A share of one without its sign, which the column has."""
    return Figure(f"{100 * part:.1f}", 100 * part, "%")


def report(state: ProfileState, *, by: str, sort: str, wide: bool = False) -> View:
    """`profile report`: a row for each module, and for what is outside of all."""
    measured = state.measured()
    if by == "op":
        return _by_op(state)
    rows = measured.rows if by == "module" else by_type(measured.rows)
    ordered = _sorted(measured, (row for row in rows if any(row.own)), sort)
    names = _columns(measured, by, wide=wide)
    shown = tuple(_cells(measured, row, names) for row in ordered[:ROWS])
    rest = sum(measured.share(row) for row in ordered[ROWS:])
    notes = [f"{len(ordered) - ROWS:,} more rows, {rest:.0%} together"] if len(ordered) > ROWS else []
    columns = (Column(by, "path"), *(Column(name, right=True) for name in names))
    return Group((head(measured), Table(columns, shown, note="\n".join(notes + _notes(state, wide=wide)))))


def _sorted(measured: Measured, rows: Iterable[Row], sort: str) -> list[Row]:
    return sorted(rows, key=lambda row: (SORTS[sort](measured, row), measured.typical(row.own)), reverse=True)


def head(measured: Measured) -> Fields:
    """The step, its spread, the throughput, and what we cost."""
    step, tool = measured.step, StepSpread.of(measured.tool)
    steps = f"{len(measured.steps)} {measured.word}{'s' * (len(measured.steps) != 1)}"
    if measured.unit and any(row.parent == "" and row.path != measured.unit for row in _modules(measured)):
        steps += f" of {measured.unit}"
    items = [("typical", f"{milliseconds(measured.seconds)} ms, half of them in {_range(step)}")]
    rates = []
    for name, value in zip(("samples", "tokens"), measured.throughput, strict=True):
        if value:
            rates.append(f"{count(value)} {name}/s")
    if rates:
        items.append(("throughput", ", ".join(rates)))
    share = tool.median / measured.seconds if measured.seconds else 0.0
    asides, aside = sum(each.asides for each in measured.times), sum(each.aside for each in measured.times)
    if asides:
        what = f"{asides:,} forward{'s' * (asides != 1)} without gradients between them"
        items.append(("not in it", f"{what} (evaluation, rollouts), {milliseconds(aside / 1e9)} ms in all"))
    if measured.is_host:
        items.append(("taken out", f"{milliseconds(tool.median)} ms of the profiler's own work, {share:.1%}"))
    else:
        spent = milliseconds(StepSpread.of(measured.events).median)
        items.append(("not taken out", f"the host has recorded events for about {spent} ms of each"))
    if measured.beside:
        whose = "its" if len(measured.beside) == 1 else "their"
        items.append(("also on", f"{', '.join(measured.beside)}; {whose} work is in these times"))
    title = (Span(steps, "key"), Span(f"on {measured.device}", "dim"))
    return Fields(title, tuple((name, Text(text)) for name, text in items))


def _modules(measured: Measured) -> list[Row]:
    return [row for row in measured.rows if not row.is_outside]


def _range(spread: StepSpread) -> str:
    return f"{milliseconds(spread.low)}–{milliseconds(spread.high)}"


def _columns(measured: Measured, by: str, *, wide: bool) -> list[str]:
    total = ["total"] if by == "module" else []
    if wide:
        return ["own ms", "%", *total, "n", "params", "FLOP", "FLOP/s", "saved", "peak"]
    names = ["own ms", "±", "%", "fwd", *(["bwd"] if measured.is_training else []), *total, "n"]
    more = ["params", "FLOP"] if by == "type" else []
    return [*names, *more, "FLOP/s", "saved" if measured.is_training else "peak"]


def _cells(measured: Measured, row: Row, names: list[str]) -> tuple[str, ...]:
    own = StepSpread.of(row.own)
    typical = measured.typical
    spread = (own.high - own.low) / 2 / typical(row.own) if typical(row.own) else 0.0
    known = {
        "own ms": milliseconds(typical(row.own)),
        "±": Figure(f"{spread:.0%}" if spread < 10 else ">999%", 100 * spread, "%"),
        "%": percent(measured.share(row)),
    }
    if not row.is_outside:
        known["fwd"] = milliseconds(typical(row.forward))
        known["bwd"] = milliseconds(typical(row.backward))
        known["total"] = milliseconds(typical(row.total))
        known["n"] = Figure(f"{typical(row.calls):.3g}", typical(row.calls))
        known["saved"], known["peak"] = count(row.saved, "B"), count(row.needed, "B")
        known["params"], known["FLOP"] = count(row.parameters), count(row.flops, "FLOP")
        known["FLOP/s"] = count(measured.rate(row), "FLOP/s")
    return (row.path, *(known.get(name, "") for name in names))


def _notes(state: ProfileState, *, wide: bool) -> list[str]:
    measured = state.measured()
    notes = [
        "own: without the modules it calls; it adds up to the step; FLOP: forward",
        f"times are means of the middle half of the {measured.word}s, ± half their range",
    ]
    if measured.is_training or wide:
        notes.append("saved: bytes that it keeps for the backward, its own")
    if wide or not measured.is_training:
        notes.append("peak: bytes a call has alive at most beyond those before it, without gradients")
    if measured.note:
        notes.append(measured.note)
    if any(row.path == UNSEEN for row in measured.rows):
        notes.append(f"{UNSEEN}: no call of a module was seen: it is compiled, or there is none")
    elif measured.is_training:
        notes.append("data: all between two steps; loss: from the model's output and back to it")
    else:
        notes.append(f"{BETWEEN}: all that the program does outside of its modules")
    if state.looked.trouble:
        notes.append(f"not looked at: {state.looked.trouble}")
    if measured.left_out:
        notes.append(f"{measured.left_out} with a stop or an error in them are left out")
    if measured.too_long:
        notes.append(f"{measured.too_long} with too many calls are left out")
    if measured.untimed:
        named = ", ".join(measured.untimed[:3])
        notes.append(f"not timed inside: {named} (compiled, scripted or replicated)")
    return notes


def _by_op(state: ProfileState) -> View:
    """The functions that one forward called, as seen in the rerun."""
    found: dict[str, tuple[int, float]] = {}
    for line in state.looked.lines.values():
        for name, calls in line.names.items():
            before = found.get(name, (0, 0.0))
            found[name] = (before[0] + calls, before[1] + line.seconds * calls / line.calls)
    if not found:
        return Notice("no operations were looked at", state.looked.trouble or "`profile 5` first")
    whole = sum(seconds for _, seconds in found.values())
    ordered = sorted(found.items(), key=lambda each: -each[1][1])[: state.session.run.config.max_lines]
    rows = tuple(
        (name, milliseconds(seconds), percent(seconds / whole), str(calls))
        for name, (calls, seconds) in ordered
    )
    columns = (Column("op", "code"), *(Column(name, right=True) for name in ("ms", "%", "calls")))
    note = "one forward, run once more and watched: for shares; `profile ops N` times kernels"
    return Table(columns, rows, note=note)


def tree(state: ProfileState) -> View:
    """`profile report --tree`: times with all below, the hot path marked."""
    measured = state.measured()
    below = _children(measured)
    roots = [row for row in measured.rows if not row.is_outside and not row.parent]
    if not roots:
        return Notice("no module was called")
    whole = measured.seconds or 1.0
    budget = [state.session.run.config.max_lines]

    def node(row: Row, *, hot: bool, seen: tuple[str, ...]) -> Node:
        total = measured.typical(row.total)
        budget[0] -= 1
        children = [child for child in below.get(row.path, []) if child.path not in seen]
        first = children[0] if children else None
        goes_on = first is not None and hot and measured.typical(first.total) >= measured.typical(row.own)
        parts = tuple(
            node(child, hot=goes_on and child is first, seen=(*seen, child.path))
            for child in children
            if budget[0] > 0
        )
        own = milliseconds(measured.typical(row.own))
        detail = f"{milliseconds(total)} ms  {100 * total / whole:.0f}%  own {own}"
        label = row.path.removeprefix(row.parent + ".") if row.parent else row.path
        return Node(label, row.kind, detail, "◆ hot" if hot else "", parts)

    def by_total(row: Row) -> float:
        return measured.typical(row.total)

    trees = [Tree(node(row, hot=True, seen=(row.path,))) for row in sorted(roots, key=by_total)[::-1]]
    note = "with all that is called inside, slowest first; ◆ the hot path: the slowest child of the slowest"
    outside = [
        f"{row.path} {milliseconds(measured.typical(row.own))} ms"
        for row in measured.rows
        if row.is_outside and any(row.own)
    ]
    note += f"\noutside of the model: {', '.join(outside)}" if outside else ""
    return Group((head(measured), *trees[:-1], Tree(trees[-1].root, note)))


def _children(measured: Measured) -> dict[str, list[Row]]:
    below: dict[str, list[Row]] = {}
    for row in measured.rows:
        if row.parent:
            below.setdefault(row.parent, []).append(row)
    for rows in below.values():
        rows.sort(key=lambda row: measured.typical(row.total), reverse=True)
    return below


def flame(state: ProfileState) -> View:
    """`profile report --flame`: a bar for each module as wide as its time, in the order of the calls."""
    measured = state.measured()
    below = _children(measured)
    lines: list[str] = []
    whole = measured.seconds or 1.0

    def draw(row: Row, begin: float, depth: int, seen: tuple[str, ...]) -> None:
        total = measured.typical(row.total)
        if total / whole < 1 / BAR / 2 or len(lines) >= state.session.run.config.max_lines:
            return
        name = row.path.removeprefix(row.parent + ".") if row.parent else row.path
        bar = " " * round(begin * BAR) + _bar(total / whole)
        lines.append(f"{bar[: BAR + 1]:<{BAR + 1}} {100 * total / whole:3.0f}% {'  ' * depth}{name}")
        at = begin
        for child in sorted(below.get(row.path, []), key=measured.rows.index):
            if child.path not in seen:
                draw(child, at, depth + 1, (*seen, child.path))
                at += measured.typical(child.total) / whole

    at = 0.0
    for row in measured.rows:
        if row.is_outside or not row.parent:
            draw(row, at, 0, (row.path,))
            at += measured.typical(row.total) / whole
    title = f"{BAR} characters are {milliseconds(measured.seconds)} ms: a typical {measured.word}"
    return Group((Text(title), Text("\n".join(line[:79] for line in lines))))


def _bar(share: float) -> str:
    eighths = round(share * BAR * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip() or "▏"


def advice_view(found: list[Advice], state: ProfileState) -> View:
    """`profile advice`."""
    beside = state.measured().beside
    aside = f"{', '.join(beside)} worked too, so waiting for data is not judged" if beside else ""
    if not found:
        return Notice("the numbers ask for nothing", aside or "`profile report` shows them", "good")
    views: list[View] = []
    for advice in found[:8]:
        title = (Span(advice.name, "warn"), Span(advice.path, "path"))
        items: list[tuple[str, View]] = []
        if advice.place.file:
            items.append(("line", Text(str(advice.place))))
        items += [("because", Text(advice.says)), ("gain", Text(advice.gain)), ("check", Text(advice.check))]
        views.append(Fields(tuple(span for span in title if span.text), tuple(items)))
    if aside:
        views.append(Notice(aside))
    if state.looked.trouble:
        views.append(Notice(f"operations were not looked at: {state.looked.trouble}"))
    return Group(tuple(views))


def comparison(names: tuple[str, str], found: ProfileComparison) -> View:
    """`profile compare`: only what is real."""
    word = f"{names[0]} → {names[1]}"
    moved = abs(found.pace - 1) > SLOWER
    pace = f"the machine itself took {_percent(found.pace)} in the second" if moved else ""
    step = found.step
    if not found.is_real:
        span = f"{_percent(step.low)} to {_percent(step.high)}"
        hint = f"the step changed by {_percent(step.ratio)}, and {span} is what the noise allows"
        if pace:
            hint += f"; {pace}"
        if found.least > LEAST_EFFECT:
            hint += f"; this comparison finds {found.least:.0%} or more: more rounds find less"
        return Notice(f"{word}: no real difference", hint, "good")
    modules = sorted(found.modules.items(), key=lambda each: -abs(each[1].after - each[1].before))
    rows = [_change("step", step), *(_change(name, change) for name, change in modules[:MODULES])]
    rows += [(name, "", milliseconds(seconds), "new", "") for name, seconds in _largest(found.added)]
    rows += [(name, milliseconds(seconds), "", "gone", "") for name, seconds in _largest(found.gone)]
    columns = (
        Column("", "path"),
        *(Column(name, right=True) for name in ("before ms", "after ms", "change", "95% interval")),
    )
    slower = "slower" if step.ratio > 1 else "faster"
    verdict = f"{_percent(step.ratio)}, {slower}" if step.is_real else "the step as a whole has not changed"
    notes = ["medians on the clock; the change is of the quickest, at the same pace of the machine"]
    notes += [pace] if pace else []
    notes += ["modules by their own time, only those that really changed"]
    return Table(columns, tuple(rows), title=f"{word}: {verdict}", note="\n".join(notes))


def _largest(parts: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(parts.items(), key=lambda each: -each[1])[:MODULES]


def _percent(ratio: float) -> str:
    value = 100 * (ratio - 1)
    return Figure(f"{value:+.1f} %" if math.isfinite(ratio) else "∞", value, "%")


def _change(name: str, change: TimeChange) -> tuple[str, ...]:
    interval = f"{_percent(change.low)} … {_percent(change.high)}"
    before, after = milliseconds(change.before), milliseconds(change.after)
    return (name, before, after, _percent(change.ratio), interval)
