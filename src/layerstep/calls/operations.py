"""Operations of torch as the program calls them: the user's own functions, or the kernels below them.

`Functions` sees what the source says (`F.layer_norm`, `softmax`, `@`), `Kernels` what torch makes of it
(`aten.native_layer_norm`), in the backward, too. Both hand every call to one function, which runs it.
"""

from __future__ import annotations

import fnmatch
import linecache
import os
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.overrides import resolve_name

from layerstep._torch.modes import PersistentFunctions
from layerstep._torch.operators import schema_of
from layerstep._torch.persistent_mode import PersistentMode
from layerstep.process.frames import is_ours

__all__ = [
    "Around",
    "Functions",
    "Kernels",
    "Op",
    "Place",
    "is_question",
    "is_whole",
    "matches",
    "name_of",
    "place_of",
    "plain_name",
    "user_frame",
    "writes",
]

Around = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Called with a function and its arguments instead of it; answers with its result."""

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


class Functions(PersistentFunctions):
    """Hands on each function of torch that is called, by the name that the source has for it."""

    def __init__(self, around: Around) -> None:
        super().__init__()
        self._around = around

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_question(func):
            return func(*args, **(kwargs or {}))
        return self._around(func, args, kwargs or {})


class Kernels(PersistentMode):
    """Hands on each kernel, with the arguments of its schema; below autograd, autocast and functorch."""

    def __init__(self, around: Around) -> None:
        super().__init__()
        self._around = around

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._around(func, args, kwargs or {})

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return False


_QUESTIONS = frozenset(
    [
        "__get__",
        "__set__",
        "__delete__",
        "__len__",
        "__repr__",
        "__str__",
        "__format__",
        "__hash__",
        "__iter__",
        "dim",
        "ndimension",
        "size",
        "stride",
        "numel",
        "nelement",
        "element_size",
        "storage_offset",
        "untyped_storage",
        "data_ptr",
        "get_device",
        "is_floating_point",
        "is_complex",
        "is_contiguous",
        "register_hook",
        "requires_grad_",
        "_set_grad_enabled",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
    ]
)
_questions: dict[Any, bool] = {}


def is_question(func: Any) -> bool:
    """Does a function compute nothing, but ask for a shape or an attribute?"""
    known = _questions.get(func)
    if known is None:
        known = _questions[func] = getattr(func, "__name__", "") in _QUESTIONS
    return known


class Place(NamedTuple):
    """A line of the user's code: of the innermost frame that is neither torch's nor ours."""

    file: str = ""
    line: int = 0
    function: str = ""

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.line).strip() if self.file else ""

    @property
    def name(self) -> str:
        """`model.py:41`."""
        return f"{os.path.basename(self.file)}:{self.line}" if self.file else ""

    def __str__(self) -> str:
        return f"{self.name}  {self.text}".rstrip()


_is_users: dict[int, tuple[CodeType, bool]] = {}
"""By identity: the code that dynamo makes may have constants without a hash."""


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of code that is neither torch's nor ours. Verdicts are kept: 0.7 µs a call."""
    while frame is not None:
        code = frame.f_code
        known = _is_users.get(id(code))
        if known is None:
            file = code.co_filename
            ours = is_ours(frame) or file.startswith((_TORCH, "<frozen", "<string>"))
            known = _is_users[id(code)] = (code, not ours)
        if known[1]:
            return frame
        frame = frame.f_back
    return None


def place_of(frame: FrameType | None) -> Place:
    """Where the user's code is, seen from a frame at or below it."""
    found = user_frame(frame)
    if found is None:
        return Place()
    return Place(found.f_code.co_filename, found.f_lineno, found.f_code.co_qualname)


_names: dict[Any, str] = {}


def name_of(func: Any) -> str:
    """`softmax`, `F.layer_norm`, `aten.mm`: how an operation is called in the source, or its kernel."""
    known = _names.get(func)
    if known is None:
        known = _names[func] = _find_name(func)
    return known


def _find_name(func: Any) -> str:
    schema = schema_of(func)
    if schema is not None:
        return str(schema.name).replace("::", ".")
    full: str = resolve_name(func) or getattr(func, "__name__", str(func))
    if full.startswith("torch.nn.functional."):
        return "F." + full.rpartition(".")[2]
    for prefix in ("torch.Tensor.", "torch._C._nn.", "torch.functional.", "torch."):
        if full.startswith(prefix):
            full = full.removeprefix(prefix)
            break
    return _OPERATORS.get(full, full.strip("_") if full.startswith("__") else full)


_OPERATORS = {
    "__truediv__": "div",
    "__rtruediv__": "div",
    "__rdiv__": "div",
    "__rsub__": "sub",
    "__rpow__": "pow",
    "__rmatmul__": "matmul",
    "__floordiv__": "floor_divide",
    "__rfloordiv__": "floor_divide",
    "__invert__": "bitwise_not",
}
"""Operators that torch knows by another name than Python; `@`, `+`, `*` and `-` call the method itself."""


class Op(NamedTuple):
    """An operation that has run, with what went in and what came out."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    caller: FrameType | None = None
    """The frame of the user's code that it was called in."""
    node: str = ""
    """The autograd node that it is a part of, in a backward pass."""
    within: int = 0
    """The depth of the module whose ops are being stepped through; 0 if that is not how the run came here."""

    @property
    def name(self) -> str:
        return name_of(self.func)

    @property
    def is_kernel(self) -> bool:
        return schema_of(self.func) is not None


def plain_name(name: str) -> str:
    """`softmax` of `F.softmax`, `add` of `add_`, `aten.softmax` of `aten._softmax`: what `op:NAME` means."""
    last = name.rpartition(".")[2].strip("_")
    return f"aten.{last}" if name.startswith("aten.") else last


def matches(pattern: str, name: str) -> bool:
    """Does `softmax`, `*softmax*` or `aten.mm` mean the operation of this name?"""
    wanted = pattern if any(mark in pattern for mark in "*?[") else plain_name(pattern)
    return fnmatch.fnmatchcase(plain_name(name), wanted)


def writes(func: Any) -> bool:
    """Does it write to an operand? Then that is shown as it is after the op."""
    schema = schema_of(func)
    if schema is not None:
        return bool(schema.is_mutable)
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


_WHOLE = {
    "lstm": "sigmoid tanh linear matmul",
    "gru": "sigmoid tanh linear matmul",
    "rnn_tanh": "tanh linear matmul",
    "rnn_relu": "relu linear matmul",
    "scaled_dot_product_attention": "softmax matmul dropout masked_fill",
    "multi_head_attention_forward": "softmax matmul bmm baddbmm linear dropout scaled_dot_product_attention",
    "transformer_encoder_layer_fwd": "softmax matmul linear layer_norm relu gelu",
    "native_multi_head_attention": "softmax matmul linear",
    "scaled_dot_product_flash_attention_for_cpu": "softmax matmul bmm mm",
    "scaled_dot_product_flash_attention": "softmax matmul bmm mm",
    "scaled_dot_product_efficient_attention": "softmax matmul bmm mm",
    "mkldnn_rnn_layer": "sigmoid tanh linear addmm mm",
    "cross_entropy": "log_softmax nll_loss",
    "normalize": "norm div",
}
"""Operations that do the work of several, which are not seen inside them."""


def is_whole(name: str, inside: str = "") -> bool:
    """Is this an operation whose parts cannot be seen at its level? `inside`: and is that one of them?"""
    parts = _WHOLE.get(plain_name(name).removeprefix("aten."))
    return parts is not None and (
        not inside or any(fnmatch.fnmatchcase(part, inside) for part in parts.split())
    )
