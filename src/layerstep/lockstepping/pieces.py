"""A module without parts on one side that does what a module with parts does on the other.

A block written with functions holds all its weights itself. So its counterpart is not the layer whose weight
is the largest of them, but the module around all layers that hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from layerstep.lockstepping.alignment import near, sketch_rows
from layerstep.lockstepping.trace import Call, Trace
from layerstep.lockstepping.values import sketch_of

__all__ = ["pieces_of"]


def pieces_of(one: Trace, other: Trace, *, exact: float) -> list[tuple[Call, tuple[Call, ...]]]:
    """The calls of the first without parts, each with what holds its weights in the second.

    That is one module, or several that run one after the other: the layers of a stacked LSTM.
    """
    mine = [call for call in one.calls if call.is_leaf and call.weights and call.outputs]
    owned = [(call, tensor) for call in mine for tensor in call.weights.values()]
    theirs = [(call, tensor) for call in other.calls for tensor in call.weights.values()]
    if not owned or not theirs:
        return []
    rows, columns = (sketch_rows([sketch_of(tensor) for _, tensor in side]) for side in (owned, theirs))
    varied = rows[:, 3] ** 2 * rows[:, 0] > 1.01 * rows[:, 2]
    same = near(rows, columns, exact) & varied[:, None]
    holders = [[theirs[j][0] for j in np.nonzero(row)[0]] for row in same]
    found = []
    for call in mine:
        own = [at for at, (each, _) in enumerate(owned) if each is call]
        known = [each for at in own if (each := _of_number(holders[at], call.number)) is not None]
        if len({id(each) for each in known}) < 2:
            continue  # one layer holds them all
        others = [at for at, (each, _) in enumerate(owned) if each.module is not call.module]
        elsewhere = {id(each) for at in others for each in holders[at]}
        parts = _modules_around(known, elsewhere, other.calls[0])
        if parts and (len(parts) == 1 or _is_chain(call, parts)):
            found.append((call, parts))
    return found


def _modules_around(known: Sequence[Call], elsewhere: set[int], root: Call) -> tuple[Call, ...]:
    """The innermost call that holds all of them, or some if it holds counterparts of others, too."""
    for around in (known[0], *known[0].ancestors()):
        if around is not root and all(around in (each, *each.ancestors()) for each in known):
            return (around,) if not _holds(around, elsewhere) else ()
    tops = []
    for call in known:
        top = call
        for around in call.ancestors():
            if around is root or _holds(around, elsewhere) or _holds_others(around, call, known):
                break
            top = around
        tops.append(top)
    return tuple(sorted({id(each): each for each in tops}.values(), key=lambda each: each.entered))


def _holds(around: Call, calls: set[int]) -> bool:
    return any(id(each) in calls for each in around.within())


def _holds_others(around: Call, call: Call, known: Sequence[Call]) -> bool:
    inside = {id(each) for each in around.within()}
    return any(each.module is not call.module and id(each) in inside for each in known)


def _is_chain(call: Call, parts: Sequence[Call]) -> bool:
    """Do the parts run one after the other, from the input of the call to its output?"""
    in_order = all(one.left < other.entered for one, other in pairwise(parts))
    ends = ((call.inputs, parts[0].inputs), (call.outputs, parts[-1].outputs))
    return in_order and all(one and other and one[0].numel == other[0].numel for one, other in ends)


def _of_number(calls: Sequence[Call], number: int) -> Call | None:
    """Of the calls of one module: that with this number. None if several modules have the same weight."""
    if len({id(call.module) for call in calls}) != 1:
        return None
    return next((call for call in calls if call.number == number), None)
