"""Where a watched tensor is at home, so that it is found again without being held.

A parameter or buffer is known by its module and name, a gradient by its parameter, so that one that takes its
place is found; a part of one (`head.weight[0]`) by its shape and strides in it; another by a weak reference.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from layerstep._torch import is_transformed
from layerstep._torch.tensors import is_tensor
from layerstep.errors import UserError
from layerstep.expressions.expression import PATH_NAME
from layerstep.module_paths.models import Models

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["PLAIN", "Home", "as_expression", "find_home", "plain_of"]


@dataclass(frozen=True, slots=True)
class Home:
    """How to find a tensor again, and what to call it."""

    label: str
    find: Callable[[], Tensor | None]
    """The tensor that the watch is on."""
    seat: Callable[[], Tensor | None] | None = None
    """What its module has now under its name."""
    parameter: Callable[[], Tensor | None] | None = None
    """Of a gradient: whose."""
    part: tuple[torch.Size, tuple[int, ...], int, torch.dtype] | None = None
    """Shape, strides, offset and dtype, if only a part of the tensor is meant."""


def find_home(session: Session, text: str) -> Home:
    """The home of the tensor that an expression gives; UserError if it gives none that can be watched."""
    if text.endswith(".grad"):
        whose = _evaluate(session, text.removesuffix(".grad"))
        if is_tensor(whose) and whose.is_leaf:
            _refuse_unreadable(whose, text)
            home = _home_of(session.run.models, whose)
            return _gradient_home(home.label if home is not None else text.removesuffix(".grad"), whose)
    value = _tensor(session, text)
    found = _home_of(session.run.models, value)
    if found is not None:
        return found
    reference = weakref.ref(value)
    del value
    if reference() is not None:
        return Home(text, reference)
    value = _tensor(session, text)  # no variable holds it: a part of another, or made by the expression
    return _home_of_part(session.run.models, value, text) or Home(text, lambda: value)


def as_expression(text: str) -> str:
    """`0.weight`, a path of a Sequential, is no Python by itself."""
    if _NUMBERED.fullmatch(text) is None:
        return text
    head, *rest = text.split(".")
    return f"{PATH_NAME}({head!r})" + "".join(f"[{name}]" if name.isdigit() else f".{name}" for name in rest)


_NUMBERED = re.compile(r"\d+(\.\w+)+")


def _evaluate(session: Session, text: str) -> Any:
    with session.run.evaluating():
        return session.prompt.evaluate(as_expression(text), deep=False)[0]


def _tensor(session: Session, text: str) -> Tensor:
    value = _evaluate(session, text)
    if isinstance(value, nn.Module):
        names = [
            name for name, _ in (*value.named_parameters(recurse=False), *value.named_buffers(recurse=False))
        ]
        hint = f"one of its tensors: {text}.{names[0]}" if names else "one of the tensors in it"
        raise UserError(f"{text} is a module", hint)
    if not is_tensor(value):
        raise UserError(f"{text} is no tensor but a {type(value).__name__}")
    _refuse_unreadable(value, text)
    return value


def _refuse_unreadable(value: Tensor, text: str) -> None:
    if isinstance(value, UninitializedParameter | UninitializedBuffer):
        raise UserError(f"{text} is lazy and has no values yet", "watch it after the first forward")
    if plain_of(value) is None:
        why = "it is sparse, quantised, nested, fake or of meta: no memory to compare"
        raise UserError(f"{text} cannot be watched", why)


def _home_of(models: Models, value: Tensor) -> Home | None:
    return next((home for tensor, home in _homes(models) if tensor is value), None)


def _home_of_part(models: Models, value: Tensor, text: str) -> Home | None:
    """Of a tensor that only shares the memory of one: `head.weight[0]`, `head.weight.data`."""
    part = plain_of(value)
    if part is None or not part.numel():
        return None
    for tensor, home in _homes(models):
        whole = plain_of(tensor)
        if whole is not None and whole.untyped_storage().data_ptr() == part.untyped_storage().data_ptr():
            geometry = (part.shape, part.stride(), int(part.storage_offset()), part.dtype)
            return replace(home, label=text, part=geometry)
    return None


def _homes(models: Models) -> Iterator[tuple[Tensor, Home]]:
    for path, module in models.everything():
        for table in (module._parameters, module._buffers):
            for name, tensor in list(table.items()):
                if tensor is None:
                    continue
                label = f"{path}.{name}"
                yield tensor, Home(label, weakref.ref(tensor), _seat(module, name))
                if tensor.is_leaf and tensor.grad is not None:
                    yield tensor.grad, _gradient_home(label, tensor)


def _gradient_home(label: str, parameter: Tensor) -> Home:
    """The gradient of a parameter, whichever tensor it is."""
    reference = weakref.ref(parameter)

    def find() -> Tensor | None:
        whose = reference()
        return whose.grad if whose is not None else None

    return Home(f"{label}.grad", find, parameter=reference)


def _seat(module: nn.Module, name: str) -> Callable[[], Tensor | None]:
    reference = weakref.ref(module)

    def find() -> Tensor | None:
        owner = reference()
        if owner is None:
            return None
        # Tables of a scripted module have no `get`.
        held = {**dict(owner._buffers.items()), **dict(owner._parameters.items())}
        return held.get(name)

    return find


PLAIN = frozenset([Tensor, nn.Parameter, nn.Buffer])
"""Of these classes the tensor itself has the memory."""
_kinds: dict[type, str] = {}


def plain_of(value: Any) -> Tensor | None:
    """The strided tensor that holds the values: itself, or the local one of a wrapper such as DTensor."""
    kind = type(value)
    if kind in PLAIN:
        return value if _has_memory(value) else None
    known = _kinds.get(kind)
    if known is None:
        known = _kinds[kind] = _kind_of(kind)
    if known == "wrapper":
        names, _ = value.__tensor_flatten__()
        return plain_of(getattr(value, names[0])) if names else None
    return value if known == "plain" and _has_memory(value) and _has_storage(value) else None


def _has_storage(value: Tensor) -> bool:
    """Has it memory of its own? A wrapper that does not say what it wraps has only a size."""
    try:
        return value.untyped_storage().data_ptr() != 0 or not value.numel()
    except RuntimeError:
        return False


def _kind_of(kind: type) -> str:
    if not issubclass(kind, Tensor) or kind.__module__.startswith("torch._subclasses"):
        return ""
    if issubclass(kind, UninitializedParameter | UninitializedBuffer):
        return ""
    return "wrapper" if hasattr(kind, "__tensor_flatten__") else "plain"


def _has_memory(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        return False
    return not (is_transformed(tensor) or tensor.is_nested)
