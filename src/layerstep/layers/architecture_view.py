"""The architecture of a model on a screen: bounded, however many modules it has."""

from __future__ import annotations

from collections.abc import Mapping

from layerstep.layers.architecture import Architecture, Block
from layerstep.tensors.format import dims, flop_count, human_bytes, listed, share
from layerstep.views import Column, Fields, Figure, Group, Span, Table, Text, View

__all__ = ["MOST_BLOCKS", "architecture_view"]

MOST_BLOCKS = 24
MOST_KINDS = 8
MOST_NAMES = 5


def architecture_view(found: Architecture, *, most: int = MOST_BLOCKS, note: str = "") -> View:
    """The figures, then the blocks."""
    items: list[tuple[str, View]] = [
        ("parameters", Text(_parameters(found))),
        ("modules", Text(f"{found.modules:,} in {found.depth} levels, {found.leaves:,} of them leaves")),
        ("layers", Text(_counted(found.kinds))),
        ("dtype", Text(_mix(found.dtypes))),
        ("device", Text(_mix(found.devices))),
    ]
    if found.flops is not None:
        items.append(("FLOP", Text(flop_count(found.flops))))
    if found.uncalled:
        items.append(("not called", Text(listed(found.uncalled, MOST_NAMES))))
    elif found.uncalled is not None:
        items.append(("not called", Text("none: the forward calls every module")))
    if found.removed_biases:
        words = [f"{name} (before {norm})" for name, norm in found.removed_biases]
        items.append(("no effect", Text(f"biases that a norm removes: {listed(words, MOST_NAMES)}")))
    if found.odd_weights:
        items.append(("odd", Text(listed([f"{n}: {words}" for n, words in found.odd_weights], MOST_NAMES))))
    title = (Span(found.name, "path"),)
    return Group((Fields(title, tuple(items)), _table(found, most, note)))


def _parameters(found: Architecture) -> str:
    trained = "all trainable" if found.trainable == found.parameters else f"{found.trainable:,} trainable"
    words = [f"{found.parameters:,}", trained, human_bytes(found.bytes)]
    if found.buffer_bytes:
        words.append(f"buffers {human_bytes(found.buffer_bytes)}")
    if found.tied:
        words.append(f"{found.tied:,} tied")
    if found.lazy:
        words.append(f"{found.lazy:,} without a size yet")
    return ", ".join(words)


def _counted(kinds: Mapping[str, int]) -> str:
    most = sorted(kinds.items(), key=lambda pair: -pair[1])
    shown = [f"{kind} ×{count:,}" if count > 1 else kind for kind, count in most[:MOST_KINDS]]
    more = [f"{len(most) - MOST_KINDS:,} more classes"] if len(most) > MOST_KINDS else []
    return ", ".join(shown + more) or "none"


def _mix(counts: Mapping[str, int]) -> str:
    if len(counts) <= 1:
        return next(iter(counts), "none")
    return "mixed: " + ", ".join(f"{count:,} {kind}" for kind, count in counts.items())


def _table(found: Architecture, most: int, note: str) -> Table:
    blocks, notes = list(found.blocks), [note] if note else []
    if len(blocks) > most:
        largest = sorted(blocks, key=lambda block: -(block.parameters + block.flops))[:most]
        kept = {block.path for block in largest}
        blocks = [block for block in blocks if block.path in kept]
        notes.append(f"the {most} largest of {len(found.blocks):,} blocks; `architecture PATH` shows a part")
    has_flops, has_shapes = found.flops is not None, any(block.shape for block in blocks)
    columns = [
        Column("block", "path"),
        Column("type", "type"),
        Column("parameters", right=True),
        Column("share", right=True),
        *([Column("FLOP", right=True), Column("of FLOP", right=True)] if has_flops else []),
        *([Column("output", "dim")] if has_shapes else []),
    ]
    rows = tuple(_row(block, found, has_flops=has_flops, has_shapes=has_shapes) for block in blocks)
    return Table(tuple(columns), rows, note="\n".join(notes))


def _row(block: Block, found: Architecture, *, has_flops: bool, has_shapes: bool) -> tuple[str, ...]:
    name = block.path + (f"…{block.last.rpartition('.')[2]}" if block.last else "")
    kind = f"{block.count} × {block.kind}" if block.count > 1 else block.kind
    size, flops = block.count * block.parameters, block.count * block.flops
    cells = [name, kind, Figure(f"{size:,}", size), _share(size, found.parameters)]
    if has_flops:
        cells += [flop_count(flops) if flops else "-", _share(flops, found.flops or 0)]
    if has_shapes:
        cells.append(dims(block.shape) if block.shape else "-")
    return tuple(cells)


def _share(part: int, whole: int) -> str:
    return share(part, whole) if part and whole else "-"
