"""Which call of one run corresponds to which of the other: by weights, by values, by order and kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layerstep.lockstepping.trace import Call, Kept
from layerstep.lockstepping.values import EMPTY, Sketch, sketch_of

__all__ = ["Likeness", "align", "family", "near", "sketch_rows", "words_in"]

Matrix = npt.NDArray[np.float64]
Grid = npt.NDArray[np.bool_]

WIDEST = 3000
"""Calls on one side that are aligned at once. Longer runs are cut at anchors: layers with equal weights."""

_FAMILIES = (
    ("norm", r"norm|^LN"),
    ("dropout", r"drop|identity|^noise"),
    ("activation", r"gelu|relu|silu|swish|tanh|sigmoid|mish|softplus|elu|act|glu|softmax"),
    ("embedding", r"embed"),
    ("pool", r"pool"),
    ("linear", r"linear|conv1d$|dense|proj"),
    ("convolution", r"conv"),
)


def family(kind: str) -> str:
    """What a class does, by its name; "" if the name does not tell."""
    return next((name for name, sign in _FAMILIES if re.search(sign, kind, re.IGNORECASE)), "")


def words_in(path: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+|\d+", path.lower()))


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What is known of each call of one side, a row each."""

    calls: Sequence[Call]
    biggest: Matrix
    """The sketch of the largest weight."""
    whole: Matrix
    """The sketch of all weights together."""
    first_in: Matrix
    first_out: Matrix
    kinds: list[str]
    families: list[str]
    words: list[frozenset[str]]

    @classmethod
    def of(cls, calls: Sequence[Call]) -> Facts:
        weights = [[sketch_of(each) for each in call.weights.values()] for call in calls]
        biggest = [max(found, key=lambda each: each.count, default=EMPTY) for found in weights]
        return cls(
            calls,
            sketch_rows(biggest),
            sketch_rows([sum(found, EMPTY) for found in weights]),
            sketch_rows([_first([*call.inputs]) for call in calls]),
            sketch_rows([_first([*call.outputs]) for call in calls]),
            [call.kind for call in calls],
            [family(call.kind) for call in calls],
            [words_in(call.path) for call in calls],
        )


def _first(values: list[Kept]) -> Sketch:
    floats = [each for each in values if each.is_float and each.numel > 1] or values
    return sketch_of(floats[0].values, floats[0].numel) if floats else EMPTY


def sketch_rows(sketches: Sequence[Sketch]) -> Matrix:
    return np.array([each.as_row() for each in sketches], dtype=np.float64).reshape(-1, 4)


def near(a: Matrix, b: Matrix, tolerance: float) -> Grid:
    """Which sketches of two sides agree, pair by pair."""
    count, total, squares, peak = (np.subtract.outer(a[:, i], b[:, i]) for i in range(4))
    size = np.maximum.outer(a[:, 2], b[:, 2])
    spread = np.sqrt(np.maximum.outer(a[:, 0], b[:, 0]) * size)
    top = np.maximum.outer(a[:, 3], b[:, 3])
    close = (np.abs(squares) <= 2 * tolerance * size) & (np.abs(peak) <= 4 * tolerance * top)
    result: Grid = (count == 0) & close & (np.abs(total) <= tolerance * spread + 1e-12)
    return result & (a[:, 0] > 0)[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """How much speaks for each pair: 0 where they cannot be the same layer."""

    scores: Matrix
    same_weights: Grid
    """All weights agree, and they are not constants such as those of a fresh norm."""
    is_sure: Grid
    """The largest weight agrees."""

    @classmethod
    def of(cls, a: Facts, b: Facts, *, exact: float, loose: float) -> Likeness:
        whole, big = near(a.whole, b.whole, exact), near(a.biggest, b.biggest, exact)
        sized = np.equal.outer(a.biggest[:, 0], b.biggest[:, 0])
        ins, outs = near(a.first_in, b.first_in, loose), near(a.first_out, b.first_out, loose)
        has_a, has_b = a.biggest[:, 0] > 0, b.biggest[:, 0] > 0
        both, neither = np.logical_and.outer(has_a, has_b), ~np.logical_or.outer(has_a, has_b)
        kinds = np.equal.outer(np.array(a.kinds), np.array(b.kinds))
        names_a, names_b = np.array(a.families), np.array(b.families)
        alike = np.equal.outer(names_a, names_b) & (names_a != "")[:, None]
        apart = ~np.equal.outer(names_a, names_b) & np.logical_and.outer(names_a != "", names_b != "")
        same_size = np.equal.outer(a.first_out[:, 0], b.first_out[:, 0])
        values = 1.0 * ins + 1.5 * outs
        scores = np.zeros(both.shape)
        scores += np.where(both & whole, 8.0 + values, 0.0)
        scores += np.where(both & ~whole & big, 6.0 + values, 0.0)
        scores += np.where(both & ~whole & ~big & sized & ~apart, 1.0 + values, 0.0)
        scores += np.where(both & ~sized & ins & outs, 2.0, 0.0)
        scores += np.where(~both & ~neither & ins & outs & ~apart, 2.0, 0.0)
        free = neither & (~apart | (ins & outs))
        scores += np.where(free & ins & outs, 3.0, 0.0)
        scores += np.where(free & ins & ~outs & (same_size | kinds), 0.9, 0.0)
        scores += np.where(free & ~ins & (same_size | kinds) & (kinds | alike), 0.25, 0.0)
        scores += np.where(free & ~ins & outs, 1.5, 0.0)
        found = scores > 0
        scores += np.where(found, 0.5 * kinds + 0.4 * alike, 0.0) + found * _shared(a.words, b.words)
        varied = a.biggest[:, 3] ** 2 * a.biggest[:, 0] > 1.01 * a.biggest[:, 2]
        return cls(scores, both & whole & varied[:, None], both & (whole | big))


def _shared(a: list[frozenset[str]], b: list[frozenset[str]]) -> Matrix:
    """A little for each word that both paths have: of two norms alike, that of the same block."""
    all_words = sorted(set().union(*a, *b))
    index = {word: at for at, word in enumerate(all_words)}

    def table(side: list[frozenset[str]]) -> Matrix:
        rows = np.zeros((len(side), len(all_words)))
        for at, words in enumerate(side):
            rows[at, [index[word] for word in words]] = 1.0
        return rows

    return np.minimum(0.1 * (table(a) @ table(b).T), 0.5)


def align(
    a: Sequence[Call], b: Sequence[Call], *, exact: float, loose: float
) -> list[tuple[Call, Call, bool]]:
    """Pairs in the order of the first run, and whether weights make each sure.

    Both sides keep their order, except for layers with the same weights. `exact` is what weights may differ
    by, `loose` what values may.
    """
    if not a or not b:
        return []
    found = Likeness.of(Facts.of(a), Facts.of(b), exact=exact, loose=loose)
    anchored = _only_each_other(found.same_weights)
    others = np.logical_or.outer(anchored.sum(axis=1) > 0, anchored.sum(axis=0) > 0) & ~anchored
    found.scores[others] = 0.0  # who has such a counterpart gets no other, wherever it is computed
    pairs = _in_order(found)
    taken_a, taken_b = {i for i, _ in pairs}, {j for _, j in pairs}
    for i, j in zip(*np.nonzero(found.same_weights), strict=True):
        if i not in taken_a and j not in taken_b:  # computed earlier or later than in the other
            pairs.append((int(i), int(j)))
            taken_a.add(i)
            taken_b.add(j)
    return [(a[i], b[j], bool(found.is_sure[i, j])) for i, j in sorted(pairs)]


def _in_order(found: Likeness) -> list[tuple[int, int]]:
    rows, columns = found.scores.shape
    if max(rows, columns) <= WIDEST:
        return best_path(found.scores)
    pairs: list[tuple[int, int]] = []
    edges = [*_anchors(found.same_weights), (rows, columns)]
    top, left = 0, 0
    for row, column in edges:
        part = found.scores[top:row, left:column]
        if part.size and max(part.shape) <= WIDEST:
            pairs += [(i + top, j + left) for i, j in best_path(part)]
        if row < rows:
            pairs.append((row, column))
        top, left = row + 1, column + 1
    return pairs


def _only_each_other(same: Grid) -> Grid:
    result: Grid = (same.sum(axis=1) == 1)[:, None] & (same.sum(axis=0) == 1)[None, :] & same
    return result


def _anchors(same: Grid) -> list[tuple[int, int]]:
    """Pairs that only fit each other, as many of them as are in the same order in both runs."""
    pairs = [(int(i), int(j)) for i, j in zip(*np.nonzero(_only_each_other(same)), strict=True)]
    ends: list[int] = []
    best: list[int] = []
    before: list[int] = []
    for at, (_, column) in enumerate(pairs):
        low = int(np.searchsorted([pairs[each][1] for each in ends], column))
        before.append(ends[low - 1] if low else -1)
        ends[low : low + 1] = [at]
    at = ends[-1] if ends else -1
    while at >= 0:
        best.append(at)
        at = before[at]
    return [pairs[each] for each in reversed(best)]


def best_path(scores: Matrix) -> list[tuple[int, int]]:
    """The pairs in rising order whose scores add up to most."""
    rows, columns = scores.shape
    table = np.zeros((rows + 1, columns + 1))
    for i in range(rows - 1, -1, -1):
        taken = np.where(scores[i] > 0, table[i + 1, 1:] + scores[i], 0.0)
        here = np.maximum(table[i + 1, :-1], taken)
        table[i, :-1] = np.maximum.accumulate(here[::-1])[::-1]
    pairs, i, j = [], 0, 0
    while i < rows and j < columns:
        if scores[i, j] > 0 and table[i, j] == table[i + 1, j + 1] + scores[i, j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif table[i, j] == table[i + 1, j]:
            i += 1
        else:
            j += 1
    return pairs
