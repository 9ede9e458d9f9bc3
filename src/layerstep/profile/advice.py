"""Advice about time: only what the numbers of a profile show, each with its gain and how to check it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch

from layerstep.calls.operations import Place
from layerstep.profile import machine
from layerstep.profile.operations import Grown, OpCounts
from layerstep.profile.report import BETWEEN, Measured, Row
from layerstep.profile.roofline import Roofline
from layerstep.profile.slow_lines import Lines
from layerstep.tensors.format import dims, human_bytes

__all__ = ["RULES", "Advice", "Evidence", "advise"]

WAITING = 0.2
"""If this share of a step passes between two steps, the model waits for its data."""
LEAST_WAIT = 1e-3
LOOP_CALLS = 64
"""A line with so many operations in one forward is in a loop."""
LOOP_SHARE = 0.1
TINY = 50e-6
"""Seconds: in a shorter operation, the call costs about as much as the work."""
MANY_OPS = 200
SMALL_BATCH = 4
LEAST_WORK = 20e-6
"""Seconds that a layer's work takes at best; below this, the call takes most of the time."""
SLOW = 0.25
"""A layer at less than this part of the rate that its kind of work reaches here is slow."""
NOTABLE = 0.05
SUBNORMAL = 0.01
FASTER = 1.3
"""A product in bfloat16 must be so many times as fast as one in float32, measured here."""
INCREDIBLE = 32
"""No processor is so many times as fast in bfloat16: another program has disturbed the measurement."""

NOWHERE = Place()


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing that costs time, and what to do."""

    name: str
    path: str
    says: str
    gain: str
    check: str
    place: Place = NOWHERE
    weight: float = 0.0
    """The share of a step that it concerns. The largest come first."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known: times by module, operations by line, sampled lines, what the machine can do."""

    measured: Measured
    looked: OpCounts
    lines: Lines
    roofline: Roofline | None = None

    def row(self, key: int) -> Row | None:
        modules = self.measured.modules
        return self.measured.row(modules[key].path) if 0 <= key < len(modules) else None

    def share(self, key: int) -> float:
        row = self.row(key)
        return self.measured.share(row) if row is not None else 0.0

    @property
    def forward(self) -> float:
        """Seconds of a typical step that modules spend in their forwards."""
        rows = (row for row in self.measured.rows if not row.is_outside)
        return sum(self.measured.typical(row.forward) for row in rows)

    def path(self, key: int) -> str:
        row = self.row(key)
        return row.path if row is not None else ""


def advise(evidence: Evidence) -> list[Advice]:
    """Everything that the numbers say, the heaviest first."""
    found = [advice for rule in RULES.values() for advice in rule(evidence)]
    return sorted(found, key=lambda advice: -advice.weight)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _waits_for_data(known: Evidence) -> Iterator[Advice]:
    measured = known.measured
    row = next((row for row in measured.rows if row.is_outside and row.path in ("data", BETWEEN)), None)
    share = measured.share(row) if row is not None else 0.0
    if row is None or share < WAITING or measured.typical(row.own) < LEAST_WAIT:
        return
    loads = known.lines.loads("between")
    if not (measured.is_training or loads):
        return  # a model that waits for requests cannot load its data sooner
    if measured.beside:
        return  # `leaks` searches between two steps: the wait may be ours
    remedy = "more `num_workers`, or prepare the data once" if loads else "do it once, or in another process"
    top = known.lines.top("between")
    where = f", {_percent(top[1])} of it at this line" if top is not None else ""
    yield Advice(
        "waiting-for-data",
        "",
        f"{_percent(share)} of a {measured.word} passes before the model is called{where}",
        f"up to {1 / (1 - share):.1f}× as many steps a second" if share < 0.999 else "nearly all of a step",
        f"{remedy}; then `profile` again and look at the row {row.path}",
        top[0] if top is not None else Place(),
        share,
    )


def _python_loops(known: Evidence) -> Iterator[Advice]:
    by_key: dict[int, int] = {}
    for line in known.looked.lines.values():
        by_key[line.key] = by_key.get(line.key, 0) + line.calls
    for key in by_key:
        lines = [line for line in known.looked.lines.values() if line.key == key]
        worst = max(lines, key=lambda line: line.calls)
        row, share = known.row(key), known.share(key)
        calls = max(row.calls) if row is not None and row.calls else 1
        each = worst.calls / max(1, calls)
        if each < LOOP_CALLS or share < LOOP_SHARE or worst.seconds / worst.calls > TINY * 10:
            continue
        in_loop = sum(line.calls for line in lines if line.calls >= worst.calls / 2)
        yield Advice(
            "python-loop",
            known.path(key),
            f"{in_loop:,} small operations in one forward out of a loop, {worst.calls:,} of them at this "
            f"line ({worst.names.most_common(1)[0][0]}); its own share of the {known.measured.word} is "
            f"{_percent(share)}",
            f"most of that {_percent(share)}",
            "do it with one operation on the whole tensor; `profile ops` then counts fewer calls",
            worst.place,
            share,
        )


def _tiny_operations(known: Evidence) -> Iterator[Advice]:
    looked = known.looked
    if looked.calls < MANY_OPS or any(True for _ in _python_loops(known)):
        return
    forward = known.forward
    mean = forward / looked.calls
    if mean < TINY:
        yield Advice(
            "tiny-operations",
            "",
            f"{looked.calls:,} operations in a forward of {1e3 * forward:.3g} ms: {1e6 * mean:.0f} µs each, "
            "about what calling one takes",
            "up to 2× in the forward",
            "`torch.compile(model)` fuses them; compare with `profile save` and `profile compare`",
            weight=forward / max(known.measured.seconds, 1e-12) / 2,
        )


def _small_batch(known: Evidence) -> Iterator[Advice]:
    samples = [step.samples for step in known.measured.times if step.samples]
    forward = known.forward
    calls = known.looked.calls
    tokens = max((step.tokens for step in known.measured.times), default=0)
    small = samples and max(samples) <= SMALL_BATCH and tokens <= SMALL_BATCH * 128
    if small and calls >= 20 and forward / calls < TINY:
        yield Advice(
            "small-batch",
            "",
            f"{max(samples)} samples a {known.measured.word}, and {1e6 * forward / calls:.0f} µs an "
            "operation: calling them takes as long as their work",
            "samples a second rise until an operation takes some 100 µs",
            "profile with four times the batch and compare the samples a second",
            weight=0.1,
        )


def _syncs(known: Evidence) -> Iterator[Advice]:
    forward = max(known.looked.seconds, 1e-12)
    seen: dict[tuple[Place, str], tuple[set[int], int, float]] = {}
    for (key, place, name), (calls, seconds) in known.looked.syncs.items():
        if not _is_library(place):
            keys, before, spent = seen.get((place, name), (set(), 0, 0.0))
            seen[(place, name)] = (keys | {key}, before + calls, spent + seconds)
    for (place, name), (keys, calls, seconds) in seen.items():
        on_device = known.measured.device != "cpu"
        cost = "each waits for the device" if on_device else "on an accelerator each waits for the device"
        gain = f"{1e3 * seconds:.1f} ms a forward here"
        yield Advice(
            "sync",
            _names(known, keys),
            f"{_SYNC_WORDS.get(name, f'`.{name}()`')} {calls:,} times in one forward: {cost}, and "
            "torch.compile breaks the graph there",
            gain + (", and the work that could have been queued meanwhile" if on_device else ""),
            "keep it a tensor (`torch.where`, `clamp`), or read it outside the forward",
            place,
            seconds / forward,
        )


_SYNC_WORDS = {"bool": "`if` on a tensor", "int": "`int()` of a tensor", "float": "`float()` of a tensor"}


def _attention(known: Evidence) -> Iterator[Advice]:
    seen: dict[Place, tuple[tuple[int, ...], set[int]]] = {}
    for found in known.looked.attention:
        seen.setdefault(found.place, (found.shape, set()))[1].add(found.key)
    for place, (shape, keys) in seen.items():
        share = sum(map(known.share, keys))
        if share < NOTABLE:
            continue
        yield Advice(
            "unfused-attention",
            _names(known, keys),
            f"scores, softmax and product are separate operations: [{dims(shape)}] "
            f"({human_bytes(4 * math.prod(shape))}) is written and read between them; "
            f"{_percent(share)} of the {known.measured.word} is this module's own",
            "F.scaled_dot_product_attention keeps no scores: often 2× of that part, and their memory",
            "replace it, then `profile save` and `profile compare`",
            place,
            share / 2,
        )


def _grown(known: Evidence) -> Iterator[Advice]:
    largest: dict[int, Grown] = {}
    for found in known.looked.grown:
        before = largest.get(found.key)
        if _is_square(found.shape) and (before is None or found.nbytes > before.nbytes):
            largest[found.key] = found
    seen: dict[Place, tuple[Grown, set[int]]] = {}
    for key, found in largest.items():
        seen.setdefault(found.place, (found, set()))[1].add(key)
    for place, (found, keys) in seen.items():
        share = sum(map(known.share, keys))
        if share < NOTABLE:
            continue
        yield Advice(
            "quadratic",
            _names(known, keys),
            f"{found.name} makes [{dims(found.shape)}] ({human_bytes(found.nbytes)}) of "
            f"[{dims(found.operand)}], {found.ratio:.0f}× as large: each of {_is_square(found.shape):,} "
            f"positions with every other; {_percent(share)} of a {known.measured.word} is this module's own",
            "half the length would cost a quarter; windows or a linear form grow with the length only",
            "profile with half the length: this module's time falls to a quarter if it is so",
            place,
            share,
        )


def _names(known: Evidence, keys: set[int]) -> str:
    first, *more = sorted(keys)
    return known.path(first) + (f" and {len(more)} more" if more else "")


def _is_square(shape: tuple[int, ...]) -> int:
    """The length of two equal neighbouring dimensions of a shape; 0 if there are none."""
    pairs = [a for a, b in pairwise(shape) if a == b and a >= 32]
    return max(pairs, default=0)


def _slow_layers(known: Evidence) -> Iterator[Advice]:
    roofline, rows = known.roofline, []
    if roofline is None:
        return
    for key, flops in known.looked.flops.items():
        row = known.row(key)
        middle = known.measured.typical(row.forward) if row is not None else 0.0
        if row is None or not flops or middle <= 0 or known.measured.share(row) < NOTABLE:
            continue
        best = roofline.achievable(flops, known.looked.moved[key])
        rate = known.measured.rate(row)
        if rate < SLOW * best and flops / best > LEAST_WORK:
            rows.append((known.measured.share(row), row, rate, best))
    for share, row, rate, best in sorted(rows, key=lambda each: -each[0])[:3]:
        yield Advice(
            "slow-layer",
            row.path,
            f"its own work runs at {rate / 1e9:.3g} GFLOP/s in the forward; this machine reaches "
            f"{best / 1e9:.3g} with work of this shape",
            f"up to {_percent(share * (1 - rate / best))} of a {known.measured.word}",
            "look at its lines with `list`: copies, small pieces, other work than the products",
            weight=share * (1 - rate / best),
        )


def _subnormals(known: Evidence) -> Iterator[Advice]:
    for key, count in known.looked.subnormal.most_common(3):
        searched = known.looked.searched[key]
        if not searched or count / searched < SUBNORMAL or _flushes():
            continue
        yield Advice(
            "denormals",
            known.path(key),
            f"{_percent(count / searched)} of the values it computes are subnormal (below 1.2e-38): "
            "arithmetic with them is up to a hundred times slower",
            "the time of this module, if the processor handles them slowly",
            "`torch.set_flush_denormal(True)`, then `profile` again",
            weight=known.share(key),
        )


def _flushes() -> bool:
    return bool((torch.full((1,), 1e-40) * 1.0 == 0).item())


def _half_precision(known: Evidence) -> Iterator[Advice]:
    whole = sum(known.looked.precisions.values())
    full = known.looked.precisions["float32"] / whole if whole else 0.0
    ratio = known.roofline.half / known.roofline.flops if known.roofline is not None else 0.0
    if known.roofline is None or not FASTER <= ratio <= INCREDIBLE:
        return
    share = full * sum(_arithmetic(known.measured, row, known.roofline.flops) for row in known.measured.rows)
    if share > NOTABLE:
        yield Advice(
            "float32",
            "",
            f"{_percent(full)} of the FLOP are of float32, and their arithmetic takes {_percent(share)} of a "
            f"{known.measured.word}; a product in bfloat16 is {ratio:.1f}× as fast here",
            f"up to {_percent(share * (1 - 1 / ratio))} of a {known.measured.word}",
            "`with torch.autocast(…, dtype=torch.bfloat16)`, then `profile compare`; watch the loss, too",
            weight=share * (1 - 1 / ratio),
        )


def _arithmetic(measured: Measured, row: Row, best: float) -> float:
    """The share of a step that its products take at the machine's rate; the rest is calls and copies."""
    if not row.own_flops:
        return 0.0
    return measured.share(row) * (1.0 if measured.is_blind else min(1.0, measured.rate(row) / best))


def _threads(known: Evidence) -> Iterator[Advice]:
    if known.measured.device != "cpu" or known.roofline is None:
        return
    cores = machine.cores()
    threads = torch.get_num_threads()
    heavy = sum(known.measured.share(row) for row in known.measured.rows if row.own_flops)
    if threads * 2 <= cores and heavy > 0.3:
        yield Advice(
            "threads",
            "",
            f"torch uses {threads} of {cores} cores, and layers with products take {_percent(heavy)}",
            f"up to {_percent(heavy * (1 - threads / cores))} of a {known.measured.word}",
            f"`torch.set_num_threads({cores})`, then `profile` again",
            weight=heavy * (1 - threads / cores) / 2,
        )
    elif threads > cores:
        yield Advice(
            "threads",
            "",
            f"torch uses {threads} threads on {cores} cores: they wait for each other",
            "the spread of the times falls first",
            f"`torch.set_num_threads({cores})`, then `profile` again",
            weight=0.05,
        )


def _is_library(place: Place) -> bool:
    return not place.file or f"{os.sep}site-packages{os.sep}" in place.file


RULES: dict[str, Callable[[Evidence], Iterator[Advice]]] = {
    "waiting-for-data": _waits_for_data,
    "python-loop": _python_loops,
    "tiny-operations": _tiny_operations,
    "small-batch": _small_batch,
    "sync": _syncs,
    "quadratic": _grown,
    "unfused-attention": _attention,
    "slow-layer": _slow_layers,
    "denormals": _subnormals,
    "float32": _half_precision,
    "threads": _threads,
}
"""By the name of the advice that each gives."""
