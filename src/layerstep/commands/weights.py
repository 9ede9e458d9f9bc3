from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from layerstep.arguments import Choice, Given, Option, Where
from layerstep.engine.session import Session
from layerstep.errors import UnknownPath, UserError
from layerstep.layers.initialisation import SchemeMatch, judge
from layerstep.layers.weights import Weight, collect, histogram, measure_all
from layerstep.module_paths.where import Where as WherePattern
from layerstep.module_paths.where import WhereKind
from layerstep.registry import command
from layerstep.tensors.bars import sparkline
from layerstep.tensors.finite import is_finite
from layerstep.tensors.format import dims, human_bytes, number, share
from layerstep.tensors.observing import observing
from layerstep.views import Column, Figure, Table

MOST_MEASURED = 2_500
FEW = 40  # rows: more of them are folded where they look the same
FEW_NOTES, MOST_NOTES = 8, 24


@dataclass(frozen=True, slots=True)
class _Row:
    """One line: a parameter, or several of the same place in repeated layers."""

    name: str
    weights: tuple[Weight, ...]
    verdict: SchemeMatch

    @property
    def size(self) -> int:
        return sum(weight.size for weight in self.weights)

    def mean(self) -> float:
        return self._pooled(lambda mean, std: mean)

    def std(self) -> float:
        mean = self.mean()
        return math.sqrt(max(0.0, self._pooled(lambda m, std: std * std + (m - mean) ** 2)))

    def _pooled(self, read: Callable[[float, float], float]) -> float:
        known = [w.figures for w in self.weights if w.figures is not None and w.figures.count]
        total = sum(figures.count for figures in known)
        if not total:
            return math.nan
        return sum(figures.count * read(figures.mean, figures.std) for figures in known) / total

    def peak(self) -> float:
        return max((w.figures.peak for w in self.weights if w.figures is not None), default=math.nan)

    def zeros(self) -> tuple[int, int]:
        known = [w.figures for w in self.weights if w.figures is not None]
        return sum(figures.zero for figures in known), sum(figures.count for figures in known)

    def dead(self) -> int:
        return sum(w.figures.dead for w in self.weights if w.figures is not None)


_SORTS: dict[str, Callable[[_Row], float]] = {
    "size": lambda row: row.size,
    "mean": lambda row: abs(row.mean()),
    "std": lambda row: row.std(),
    "max": lambda row: row.peak(),
    "zero": lambda row: row.zeros()[0] / max(1, row.zeros()[1]),
    "dead": lambda row: row.dead(),
    "init": lambda row: row.verdict.is_fault,
}


@command(
    "weights",
    group="look",
    args=(
        Where(optional=True, completes="path"),
        Option("sort", Choice("COLUMN", of=tuple(_SORTS)), "puts the largest of a column first"),
    ),
    examples=("weights", "weights blocks.0", "weights **.attn.qkv.weight", "weights type:Linear --sort std"),
)
def weights(session: Session, given: Given) -> Table:
    """Show the parameters: figures, dead rows, initialisation.

    WHERE is as in `break`, or the name of a parameter; without it, the whole model. `dead` counts rows
    (units) whose values are all below a millionth of the largest weight. `init` names the usual
    initialisations that fit: their std is within 4 standard errors, and the values have their distribution.
    Weights that fit none are marked as trained. That is fine. A `!` marks a fault: NaN, all zero or
    constant, a std above 3 times He's or below a hundredth of it. COLUMN is size, mean, std, max, zero, dead
    or init.
    """
    text, sort = given.where, given.sort
    with observing():
        found = _meant(session, text)
        if not found:
            hint = "`weights` shows those of the model" if text else "`tree` shows what it has"
            raise UserError(f"no parameters in {text or 'the model'}", hint)
        looked = _spread_out(found)
        measure_all(looked)
        rows = [
            _Row(_name(weight), (weight,), judge(weight, depth=_depth(session, weight))) for weight in looked
        ]
        folded = _folded(rows) if len(rows) > FEW else rows
        return _table(session, sorted(folded, key=_SORTS[sort], reverse=True) if sort else folded, found)


def _spread_out(weights: list[Weight]) -> list[Weight]:
    """Of very many some, evenly spread, and all that hold a NaN or an Inf."""
    step = -(-len(weights) // MOST_MEASURED)
    return [
        weight for number, weight in enumerate(weights) if number % step == 0 or not is_finite(weight.tensor)
    ]


def _meant(session: Session, text: str) -> list[Weight]:
    """The parameters of the modules that a WHERE means and of all below them, or those of that name."""
    if session.run.models.main is None:
        raise UserError("no model has run yet", "`continue` starts the run")
    every = collect(session.run.models.everything())
    if not text:
        return every
    where = WherePattern.parse(text)
    named = {id(weight) for weight in every if any(_is_called(where, name) for name in weight.names)}
    try:
        found = {id(part) for _, module in where.look_up(session.run.models) for part in module.modules()}
    except UnknownPath:
        if not named:
            raise
        found = set()
    return [w for w in every if id(w) in named or any(id(module) in found for module in w.modules)]


def _is_called(where: WherePattern, name: str) -> bool:
    if where.kind is WhereKind.PATH:
        return name == where.text or name.endswith("." + where.text)
    return where.kind is not WhereKind.TYPE and where.pattern is not None and bool(where.pattern.search(name))


def _name(weight: Weight) -> str:
    return " = ".join(weight.names[:3]) + (
        f" = … {len(weight.names) - 3} more" if len(weight.names) > 3 else ""
    )


def _depth(session: Session, weight: Weight) -> int:
    """How many layers the numbered stack has that a parameter is in, 0 if it is in none."""
    stack = re.match(r"(.*?)\.\d+\.", weight.names[0])
    module = session.run.models.at(stack[1]) if stack is not None else None
    return len(module._modules) if module is not None else 0


def _folded(rows: list[_Row]) -> list[_Row]:
    """Parameters of the same place in repeated layers, of one shape and verdict, as one row."""
    groups: dict[object, list[_Row]] = {}
    for row in rows:
        place = re.sub(r"(?<![^.])\d+(?=\.)", "*", row.name)
        shape = row.weights[0].shape
        groups.setdefault(id(row) if row.verdict.is_fault else (place, shape, row.verdict.short), []).append(
            row
        )
    folded: list[_Row] = []
    for group in groups.values():
        if len(group) < 3:
            folded += group
            continue
        place = re.sub(r"(?<![^.])\d+(?=\.)", "*", group[0].name)
        weights = tuple(weight for row in group for weight in row.weights)
        folded.append(_Row(f"{place} ×{len(group)}", weights, group[0].verdict))
    return folded


def _table(session: Session, rows: list[_Row], found: list[Weight]) -> Table:
    most = max(1, session.run.config.max_lines - MOST_NOTES)
    cut = len(rows) - most
    if cut > 0:
        rows = sorted(rows, key=lambda row: not row.verdict.is_fault)[:most]
    has_zero, has_dead = any(row.zeros()[0] for row in rows), any(row.dead() for row in rows)
    columns = [
        Column("parameter", "path"),
        Column("shape", "dim"),
        *(Column(name, right=True) for name in ("mean", "std", "|max|")),
        *([Column("zero", right=True)] if has_zero else []),
        *([Column("dead", right=True)] if has_dead else []),
        Column("values"),
        Column("init"),
    ]
    cells = tuple(_cells(row, has_zero=has_zero, has_dead=has_dead) for row in rows)
    notes = [f"{cut:,} more rows, what is at fault first; name a part to see them"] if cut > 0 else []
    if len(found) > MOST_MEASURED:
        notes.append(f"measured {sum(len(row.weights) for row in rows):,} of {len(found):,}, evenly spread")
    return Table(tuple(columns), cells, note="\n".join([*notes, *_explained(rows), *_totals(found)]))


def _explained(rows: list[_Row]) -> list[str]:
    """The faults in full, and the others too if they are few; else what the names of the schemes mean."""
    faults = [f"! {row.name}: {row.verdict.words}" for row in rows if row.verdict.is_fault]
    if len(rows) <= FEW_NOTES:
        words = dict.fromkeys(row.verdict.words for row in rows if not row.verdict.is_fault)
        alike = ((each, [row.name for row in rows if row.verdict.words == each]) for each in words)
        return faults + [f"{', '.join(names)}: {each}" for each, names in alike]
    names = {scheme.short: scheme.name for row in rows for scheme in row.verdict.schemes[:2]}
    legend = [f"{short}: {name}" for short, name in names.items()][:FEW_NOTES]
    more = [f"… {len(faults) - FEW_NOTES} more with a !"] if len(faults) > FEW_NOTES else []
    expected = ["after the name of a scheme that fits stands the std it expects"] if legend else []
    return faults[:FEW_NOTES] + more + legend + expected


def _cells(row: _Row, *, has_zero: bool, has_dead: bool) -> tuple[str, ...]:
    first = row.weights[0]
    mean = "-" if math.isnan(row.mean()) else Figure(f"{row.mean():.1g}", row.mean())
    figures = (mean, _figure(row.std()), _figure(row.peak()))
    zero, count = row.zeros()
    more = [share(zero, count) if zero else ""] if has_zero else []
    if has_dead:
        more.append(f"{row.dead():,}" if row.dead() else "")
    shape = dims(first.shape)
    verdict = f"! {row.verdict.short}" if row.verdict.is_fault else row.verdict.short
    bars = sparkline([0.0, *histogram(first.tensor)])[1:]  # from zero: a flat one is to look flat
    return (row.name, shape, *figures, *more, bars, verdict)


def _figure(value: float) -> str:
    return number(value) if math.isfinite(value) else "-"


def _totals(found: list[Weight]) -> Iterator[str]:
    total, trained = sum(w.size for w in found), sum(w.size for w in found if w.tensor.requires_grad)
    trainable = "all trainable" if trained == total else f"{trained:,} trainable"
    tensors = "tensor" if len(found) == 1 else "tensors"
    size = human_bytes(sum(weight.nbytes for weight in found))
    yield f"{total:,} parameters in {len(found):,} {tensors}, {trainable}, {size}, {_mix(found)}"
    if tied := sum(len(weight.names) > 1 for weight in found):
        yield f"{tied:,} tied: one memory under several names, counted once"
    if sampled := sum(w.figures is not None and w.figures.sampled for w in found):
        least = min(w.figures.count for w in found if w.figures is not None and w.figures.sampled)
        yield f"{sampled:,} of the larger ones by a sample of {least:,} elements or more; dead rows by all"


def _mix(found: list[Weight]) -> str:
    """`f32 on cpu`, or how many tensors are of which kind."""
    kinds = Counter(f"{weight.dtype} on {weight.tensor.device}" for weight in found).most_common(5)
    return (
        kinds[0][0]
        if len(kinds) == 1
        else "mixed: " + ", ".join(f"{count:,} {kind}" for kind, count in kinds)
    )
