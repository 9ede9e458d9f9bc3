"""Watch `torch.compile`, to know the functions that hide the calls of a model.

Compiled code calls no modules: it runs their operations. Dynamo does not tell when a compiled function runs,
and importing it takes over a second, so we watch its one public entry. Seen on torch 2.13.0.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

__all__ = ["CompileWatch", "backend_of", "compiled_alone", "graph_calls", "is_compilers_graph"]

_is_compiling = torch.compiler.is_dynamo_compiling


def is_compilers_graph(module: nn.Module, frame: FrameType | None) -> bool:
    """Is this a graph that the compiler made of a function? It does not count as a model.

    Fallback: a compiled function counts as a model, with the compiler's names.
    """
    graphs = sys.modules.get("torch.fx.graph_module")
    if graphs is None or not isinstance(module, graphs.GraphModule):
        return False
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile_wrapper" and "_dynamo" in code.co_filename:
            return True
        frame = frame.f_back
    return False


def graph_calls(module: nn.Module) -> set[str] | None:
    """The modules that a traced graph calls, by their paths in it; None if the module is not a graph."""
    graphs = sys.modules.get("torch.fx.graph_module")
    if graphs is None or not isinstance(module, graphs.GraphModule):
        return None
    return {str(node.target) for node in module.graph.nodes if node.op == "call_module"}


def backend_of(module: nn.Module) -> Any:
    """The backend that a compiled module was compiled with. Fallback: None, which is torch's own choice."""
    context = getattr(module, "dynamo_ctx", None)
    if context is None:  # by `module.compile()`
        call = getattr(module, "_compiled_call_impl", None)
        cells = [cell.cell_contents for cell in getattr(call, "__closure__", None) or ()]
        context = next((each for each in cells if hasattr(each, "callback")), None)
    found = getattr(context, "callback", None)
    while (inner := getattr(found, "_torchdynamo_orig_backend", None)) is not None:
        found = inner
    return found


def compiled_alone(module: nn.Module, backend: Any) -> Callable[..., Any]:
    """The module compiled by itself, for one use.

    Dynamo keeps what it has compiled with the code of a function, and gives up on a code after a few
    versions. So this is a function with code of its own: the program's compiled code stays as it is.
    """
    names: dict[str, Any] = {"module": module}
    exec("def call(*args, **kwargs):\n    return module(*args, **kwargs)", names)
    own = getattr(torch.compile, "__wrapped__", torch.compile)  # not the one that is watched
    options = {} if backend is None else {"backend": backend}
    run: Callable[..., Any] = own(names["call"], **options)

    def alone(*args: Any, **kwargs: Any) -> Any:
        with torch.compiler.set_stance("default"):
            return run(*args, **kwargs)

    return alone


class CompileWatch:
    """Reports each function or module that is given to `torch.compile`, before it runs compiled."""

    def __init__(self, compiled: Callable[[Any], None]) -> None:
        self._compiled = compiled
        self._is_on = False
        self._before: Any = None
        self._replacement: Any = None

    def start(self) -> None:
        """Begin to watch; once. `module.compile()` and the decorator call it too."""
        self._is_on = True
        if self._replacement is not None:
            return
        self._before = before = torch.compile

        @functools.wraps(before)
        def compile_and_report(*args: Any, **kwargs: Any) -> Any:
            result = before(*args, **kwargs)
            given = args[0] if args else kwargs.get("model")
            if self._is_on and given is not None and not _is_compiling():
                self._compiled(given)
            return result

        self._replacement = torch.compile = compile_and_report

    def stop(self) -> None:
        """Put torch's own back. If a library has wrapped ours since, that stays, and ours does nothing."""
        self._is_on = False
        if self._replacement is not None and torch.compile is self._replacement:
            torch.compile = self._before
            self._before = self._replacement = None
