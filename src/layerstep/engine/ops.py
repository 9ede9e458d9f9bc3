"""Operations of torch as the program calls them: the user's own functions, or the kernels below them.

`Functions` sees what the source says (`F.layer_norm`, `softmax`, `@`), `Kernels` what torch makes of it
(`aten.native_layer_norm`), in the backward, too. Both hand every call to one function, which runs it.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

from layerstep.engine.stack import is_ours

__all__ = ["Around", "Functions", "Kernels", "Place", "name_of", "place_of", "user_frame"]

Around = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Called with a function and its arguments instead of it; answers with its result."""

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


class Functions(TorchFunctionMode):
    """Hands on each function of torch that is called, by the name that the source has for it."""

    def __init__(self, around: Around) -> None:
        super().__init__()
        self._around = around

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_question(func):
            return func(*args, **(kwargs or {}))
        return self._around(func, args, kwargs or {})


class Kernels(TorchDispatchMode):
    """Hands on each kernel, with the arguments of its schema; below autograd, autocast and functorch."""

    def __init__(self, around: Around) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._around = around

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._around(func, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # otherwise the first op imports torch._dynamo: 1.2 to 2.4 s
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


_is_users: dict[CodeType, bool] = {}


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of code that is neither torch's nor ours. Verdicts are kept: 0.7 µs a call."""
    while frame is not None:
        code = frame.f_code
        verdict = _is_users.get(code)
        if verdict is None:
            file = code.co_filename
            ours = is_ours(frame) or file.startswith((_TORCH, "<frozen", "<string>"))
            verdict = _is_users[code] = not ours
        if verdict:
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
    schema = getattr(func, "_schema", None)
    if schema is not None:
        return str(schema.name).replace("::", ".")
    full: str = resolve_name(func) or getattr(func, "__name__", str(func))
    if full.startswith("torch.nn.functional."):
        return "F." + full.rpartition(".")[2]
    for prefix in ("torch.Tensor.", "torch._C._nn.", "torch."):
        if full.startswith(prefix):
            return full.removeprefix(prefix)
    return full
