"""What is said besides the layer: other settings, shared weights, layers that are cut otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from layerstep.lockstepping.alignment import family
from layerstep.lockstepping.checks import Check
from layerstep.lockstepping.matching import CallMap, Pair
from layerstep.lockstepping.result import Site
from layerstep.lockstepping.trace import Trace

__all__ = ["about_cuts", "about_healed", "about_unseen", "other_settings"]

MOST_SETTINGS = 4
MOST_TOLD = 3
UNTOLD = frozenset(("training", "inplace", "layer_idx", "in_features", "out_features", "nf", "nx"))
"""Settings that say nothing: sizes follow from the weights."""


def about_healed(healed: list[Pair]) -> list[str]:
    """Layers that differ though what follows them agrees."""
    names = list(dict.fromkeys(pair.a[0].name for pair in healed if pair.is_leaf))
    if not names:
        return []
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [f"they differ, and what follows agrees: {', '.join(names[:3])}{more}"]


def about_cuts(folded: list[Check]) -> list[str]:
    told = [
        f"{' + '.join(call.name for call in (check.pair.a[0], *check.with_others))} in the other"
        for check in folded
    ]
    more = f" and {len(told) - 3} more" if len(told) > 3 else ""
    names = [check.pair.b[0].name for check in folded]
    lines = [f"{name} is {text}" for name, text in zip(names, told, strict=True)]
    return ["cut otherwise: " + ", ".join(lines[:3]) + more] if lines else []


def other_settings(pair: Pair) -> list[str]:
    """What is set otherwise in the two modules."""
    one, other = pair.a[0], pair.b[0]
    told = []
    for name, mine in one.settings.items():
        theirs = other.settings.get(name, mine)
        if name not in UNTOLD and theirs != mine and type(theirs) is type(mine):
            told.append(f"{name} {mine} and {theirs}")
    modes = [call.settings.get("training") for call in (one, other)]
    if None not in modes and modes[0] != modes[1] and family(one.kind) in ("norm", "dropout", ""):
        which = "first" if one.settings.get("training") else "second"
        told.append(f"the {which} is in training mode")
    return told[:MOST_SETTINGS]


# --- what this input does not show ---


def about_unseen(mapping: CallMap, a: Trace, b: Trace, site: Site | None) -> list[str]:
    """Differences that no value of this forward shows, and that training or another input may."""
    settings = list(dict.fromkeys(_unseen_settings(mapping, site)))
    more = f" and {len(settings) - MOST_TOLD} more" if len(settings) > MOST_TOLD else ""
    words = "set otherwise, without effect here" if site is None else "also set otherwise"
    told = [f"{words}: {', '.join(settings[:MOST_TOLD])}{more}"] if settings else []
    return [*told, *_shared(mapping, a, is_second=False), *_shared(mapping, b, is_second=True)]


def _unseen_settings(mapping: CallMap, site: Site | None) -> Iterator[str]:
    for pair in mapping.pairs:
        one, other = pair.a[0], pair.b[0]
        is_named = site is not None and (one.path, other.path) == (site.a, site.b)
        if pair.is_leaf and not pair.is_split and one.kind == other.kind and not is_named:
            for each in other_settings(pair):
                yield f"{one.path or 'the model'} ({each})"


def _shared(mapping: CallMap, owner: Trace, *, is_second: bool) -> Iterator[str]:
    """Layers that share a weight in one model, as tied embeddings do, and have a copy each in the other."""
    users: dict[int, dict[str, set[int]]] = {}
    for pair in mapping.pairs:
        if not pair.is_leaf or pair.is_split:
            continue
        one, other = (pair.b[0], pair.a[0]) if is_second else (pair.a[0], pair.b[0])
        for name, tensor in one.weights.items():
            theirs = other.weights.get(name)
            if theirs is not None and theirs.shape == tensor.shape:
                users.setdefault(id(tensor), {}).setdefault(one.path, set()).add(id(theirs))
    for paths in users.values():
        copies = {each for ids in paths.values() for each in ids}
        if len(paths) > 1 and len(copies) > 1:
            names = " and ".join(list(paths)[:2])
            yield f"{owner.title} has one weight for {names}; the other has a copy for each"
