"""What is known of a crash without running anything again: the failing call, its operands, the module.

The operands are read out of the source: the exact expression that raised is known by its position, its names
by the frame's variables. Only what cannot act is evaluated: names, attributes, indices, views of tensors.
"""

from __future__ import annotations

import inspect
import linecache
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from layerstep._torch.tensors import is_tensor
from layerstep.crashes.explain.reading import UNKNOWN, Operand, read_call
from layerstep.crashes.inplace_writes import Write
from layerstep.crashes.traceback_calls import Crash, Spot, is_users
from layerstep.errors import message_of
from layerstep.process.frames import forget_locals
from layerstep.tensors.shapes import attempt, dtype_name, shape_line, shape_of

__all__ = ["Facts", "Operand", "dtype_of", "facts_of", "sizes"]

_LAYERS = os.path.join(os.path.dirname(torch.nn.__file__), "modules", "")
_MODULE = os.path.join(_LAYERS, "module.py")
MOST_TEXT = 60


@dataclass(frozen=True, slots=True)
class Facts:
    """An exception, and everything around it that explains it."""

    error: BaseException
    module: nn.Module | None = None
    path: str = ""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    op: str = ""
    """The failing call as the source has it: `torch.cat`, `@`, `view`, `[]`."""
    text: str = ""
    """The whole failing expression, on one line."""
    operands: tuple[Operand, ...] = ()
    inner: dict[str, Any] = field(default_factory=dict)
    """The variables of the function of torch's that raised."""
    line: str = ""
    """The line of the user's code."""
    parent: nn.Module | None = None
    """The module that called this one."""
    functions: frozenset[str] = frozenset()
    """The names of the functions that the exception came through."""
    writes: tuple[Write, ...] = ()

    @property
    def message(self) -> str:
        return message_of(self.error)

    @property
    def is_layer(self) -> bool:
        """Is the module one of torch's own, whose class says what it does?"""
        return self.module is not None and type(self.module).__module__.startswith("torch.nn.modules")

    @property
    def subject(self) -> str:
        """What failed: one of torch's layers by its sizes, or the user's expression."""
        if self.module is not None and self.is_layer:
            return layer_name(self.module)
        return self.text or self.op or (type(self.module).__name__ if self.module is not None else "")

    @property
    def tensors(self) -> list[Operand]:
        """The operands that are tensors."""
        return [operand for operand in self.operands if is_tensor(operand.value)]

    def argument(self, name: str) -> Any:
        """An argument of the module's forward, or of the function of torch's that failed, by its name."""
        if self.module is not None:
            bound = bound_arguments(self.module, self.args, self.kwargs)
            if name in bound:
                return bound[name]
        return self.inner.get(name)

    def given(self) -> Iterator[tuple[str, Any]]:
        """What the module was called with, by name."""
        if self.module is not None:
            yield from bound_arguments(self.module, self.args, self.kwargs).items()

    def pair(self) -> tuple[Operand, Operand] | None:
        """The two tensors that an operation is about, where both are known."""
        found = self.tensors
        if len(found) < 2:
            names = ("input", "target", "other", "mat2", "weight")
            found = [Operand(n, self.inner[n]) for n in names if isinstance(self.inner.get(n), Tensor)]
        return (found[0], found[1]) if len(found) > 1 else None

    @property
    def input(self) -> Tensor | None:
        """The first tensor that the module was called with; without a module, that of the operation."""
        values = [value for _, value in self.given()] or [operand.value for operand in self.operands]
        return next((value for value in values if is_tensor(value)), None)


def facts_of(crash: Crash) -> Facts:
    """Read what a crash knows."""
    frame = crash.inner
    spots = _inside(crash)
    index = next((i for i, spot in enumerate(spots) if _is_telling(spot)), None)
    spot = spots[index] if index is not None else None
    op, operands = read_call(spot) if spot is not None else ("", ())
    text = short_text(spot.text) if spot is not None and is_users(spot.frame) else ""
    callee = spots[index - 1].frame if index else None
    inner = dict(callee.f_locals) if callee is not None else {}
    if spots and not inner and spot is not None and not is_users(spot.frame):
        inner = dict(spots[0].frame.f_locals)
    for each in crash.spots:
        forget_locals(each.frame)
    site = crash.site
    modules = [each.module for each in crash.stack if each.module is not None]
    return Facts(
        crash.error,
        frame.module if frame is not None else None,
        frame.path if frame is not None else "",
        frame.args if frame is not None else (),
        frame.kwargs if frame is not None else {},
        op,
        "" if text.startswith("raise ") else text,
        operands,
        inner,
        linecache.getline(site.file, site.line).strip() if site is not None else "",
        modules[1] if len(modules) > 1 else None,
        frozenset(each.frame.f_code.co_name for each in crash.spots),
        crash.writes,
    )


def _inside(crash: Crash) -> list[Spot]:
    """The frames inside the innermost module call, or all of them where there is none."""
    frame = crash.inner
    inside = []
    for spot in crash.spots:
        called = spot.frame.f_locals.get("self") if spot.frame.f_code.co_name == "_call_impl" else None
        if frame is not None and called is frame.module:
            break
        inside.append(spot)
    return inside


def _is_telling(spot: Spot) -> bool:
    """Does the source here say what was called: the user's, or that of a layer of torch's?"""
    return is_users(spot.frame) or (spot.file.startswith(_LAYERS) and spot.file != _MODULE)


def bound_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names that the module's forward has for them."""
    try:
        signature = inspect.signature(type(module).forward)
        bound = signature.bind_partial(module, *args, **kwargs).arguments
    except (TypeError, ValueError):  # the wrong number of them: that may be what failed
        return {str(i): value for i, value in enumerate(args)} | kwargs
    named: dict[str, Any] = {}
    for name, value in list(bound.items())[1:]:
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            named |= {f"{name}[{i}]": each for i, each in enumerate(value)}
        elif kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        else:
            named[name] = value
    return named


def short_text(text: str) -> str:
    one = " ".join(text.split())
    return one if len(one) <= MOST_TEXT else one[: MOST_TEXT - 1] + "…"


def sizes(value: Any) -> str:
    """[2, 64, 512] of a tensor, the short line of anything else."""
    if is_tensor(value):
        return str(list(shape_of(value)))
    return "?" if value is UNKNOWN else shape_line(value)


def dtype_of(value: Any) -> str:
    return dtype_name(value.dtype) if is_tensor(value) else type(value).__name__


def _by(values: Any) -> str:
    if isinstance(values, tuple | list):
        return "×".join(map(str, values))
    return str(values)


def _conv(module: Any) -> str:
    kernel = module.kernel_size
    text = _by(kernel) if len(kernel) > 1 else str(kernel[0])
    groups = f", groups {module.groups}" if module.groups != 1 else ""
    return f"{module.in_channels}→{module.out_channels}, kernel {text}{groups}"


def layer_name(module: nn.Module) -> str:
    """One of torch's layers by what decides about shapes: Linear(768→3072), Conv2d(3→8, kernel 3×3)."""
    one: Any = module
    kind = type(module).__name__
    if kind == "NonDynamicallyQuantizableLinear":
        kind = "Linear"
    inside = attempt(partial(_sizes_inside, one), None)
    if inside is None:
        inside = attempt(lambda: " ".join(module.extra_repr().split())[:40], "")
    return f"{kind}({inside})" if inside else kind


def _sizes_inside(module: Any) -> str | None:  # noqa: C901 - one line a kind of layer
    match module:
        case nn.Linear():
            return f"{module.in_features}→{module.out_features}"
        case nn.modules.conv._ConvNd():
            return _conv(module)
        case nn.modules.batchnorm._NormBase():
            return str(module.num_features)
        case nn.LayerNorm() | nn.RMSNorm():
            return _by(module.normalized_shape)
        case nn.GroupNorm():
            return f"{module.num_groups}, {module.num_channels}"
        case nn.Embedding() | nn.EmbeddingBag():
            return f"{module.num_embeddings}×{module.embedding_dim}"
        case nn.MultiheadAttention():
            return f"{module.embed_dim}, {module.num_heads} heads"
        case nn.RNNBase() | nn.modules.rnn.RNNCellBase():
            return f"{module.input_size}→{module.hidden_size}"
        case nn.modules.pooling._MaxPoolNd() | nn.modules.pooling._AvgPoolNd():
            return f"kernel {_by(module.kernel_size)}"
        case nn.modules.loss._Loss() | nn.Sequential() | nn.ModuleList() | nn.ModuleDict():
            return ""
    return None
