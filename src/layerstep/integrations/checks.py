"""What the pytest plugin asks: why a test failed, where two results differ, what a call costs."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerstep._torch.tensors import is_tensor
from layerstep.config import is_disabled, load_config
from layerstep.crashes.catching import Crashes, is_noted
from layerstep.crashes.traceback_calls import comes_from_module, crash_of, errors_behind
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.frontends.choose import open_session
from layerstep.layers.architecture import describe
from layerstep.process.frames import forget_locals
from layerstep.profile.flops import count_flops
from layerstep.render.screen import to_text
from layerstep.tensors.compare import compare
from layerstep.tensors.observing import observing
from layerstep.tensors.pairs import same_bits
from layerstep.tensors.present import brief
from layerstep.tensors.shapes import shape_line
from layerstep.views import Fields, Span

__all__ = ["Cost", "cost_of", "difference_of", "explain_failure"]

MOST_NAMES = 10
MOST_ELEMENTS = 1 << 20
"""Of each tensor of a test, that are looked at for its line in the report."""


def explain_failure(error: BaseException) -> str:
    """Why a test failed, if a model or a tensor has to do with it; else nothing."""
    if is_disabled():
        return ""
    output = io.StringIO()
    session, _ = open_session(batch=True, output=output)
    session.instruments.get(Crashes).examine(error)
    session.close()
    if is_noted(error) or any(map(comes_from_module, errors_behind(error))):
        return output.getvalue().strip("\n")
    return _tensors_at(error, session)


def _tensors_at(error: BaseException, session: Session) -> str:
    """The tensors and modules that the line which raised could see."""
    site = crash_of(error, session.run.models).site
    if site is None:
        return ""
    names = {
        name: value
        for name, value in site.frame.f_locals.items()
        if (is_tensor(value) or isinstance(value, nn.Module)) and not name.startswith("@")
    }
    forget_locals(site.frame)
    rows = tuple((name, brief(names[name], limit=MOST_ELEMENTS)) for name in list(names)[:MOST_NAMES])
    more = f", {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    title = f"tensors and modules at {os.path.basename(site.file)}:{site.line}{more}"
    return to_text(Fields((Span(title),), rows)) if rows else ""


def difference_of(a: Any, b: Any, path: str = "") -> str:
    """Where two results differ first, bit by bit; empty if nowhere.

    They may be tensors, modules, numbers, and lists, tuples and dicts of these. NaN equals NaN of the same
    bits, and 0 is not -0.
    """
    place = path or "the values"
    if isinstance(a, nn.Module) and isinstance(b, nn.Module):
        return difference_of(a.state_dict(), b.state_dict(), path)
    if is_tensor(a) and is_tensor(b):
        return _difference_of_tensors(a, b, place)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            odd = sorted(map(repr, a.keys() ^ b.keys()))
            return f"{place}: only one has {', '.join(odd[:5])}{' …' if len(odd) > 5 else ''}"
        inner = ((a[key], b[key], f"{path}.{key}" if path else str(key)) for key in a)
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if len(a) != len(b):
            return f"{place}: {len(a)} items and {len(b)} items"
        inner = ((x, y, f"{path}[{index}]") for index, (x, y) in enumerate(zip(a, b, strict=True)))
    else:
        is_same = type(a) is type(b) and (repr(a) == repr(b) if isinstance(a, float) else a == b)
        return "" if is_same else f"{place}: {shape_line(a)} and {shape_line(b)}"
    return next(filter(None, (difference_of(*each) for each in inner)), "")


def _difference_of_tensors(a: Tensor, b: Tensor, place: str) -> str:
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return f"{place}: {shape_line(a)} and {shape_line(b)}"
    with observing():
        if a.layout is torch.strided and same_bits(a, b):
            return ""
        found = compare(a, b)
    if a.layout is not torch.strided and not found.differing:
        return ""
    if not found.differing:
        return f"{place}: equal numbers with other bits, as 0 and -0"
    words = f"{place}: {found.differing:,} of {found.count:,} elements differ"
    if found.first is not None and found.there is not None:
        words += f", first at {list(found.first)}: {found.there[0]!r} and {found.there[1]!r}"
    return f"{words}; {found.words}"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call of a model costs; exact numbers, which are the same on every machine."""

    flops: int
    """Of the forward."""
    backward_flops: int
    """0 where no gradient is wanted."""
    parameters: int
    trainable: int
    bytes: int
    """Of parameters and buffers."""
    uncounted: tuple[str, ...] = ()
    """Operations that no formula counts."""


def cost_of(model: nn.Module, *args: Any, **kwargs: Any) -> Cost:
    """Call a model once on copies, and count. Nothing of it changes."""
    if not isinstance(model, nn.Module):
        raise UserError(f"cost_of wants an nn.Module, not {type(model).__name__}", "cost_of(model, x)")
    session = Session(config=load_config())
    session.add_model(model)
    counted = count_flops(session, model, args=args, kwargs=dict(kwargs), backward=torch.is_grad_enabled())
    with observing():
        made_of = describe(session.run.models)
    return Cost(
        flops=counted.forward.total(),
        backward_flops=counted.backward.total(),
        parameters=made_of.parameters,
        trainable=made_of.trainable,
        bytes=made_of.bytes + made_of.buffer_bytes,
        uncounted=tuple(sorted({name for _, name in counted.uncounted})),
    )
