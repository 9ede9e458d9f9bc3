"""The model as an ONNX file: exported by torch from copies, checked, and compared with the model itself.

The file is for a viewer such as Netron: the shapes are those of this call, and each node names the modules
that it came from.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from layerstep._torch import function_modes_on
from layerstep._torch.guards import no_grad_unseen
from layerstep.engine.session import Session
from layerstep.errors import UserError, first_line
from layerstep.hooks.temporary import replacing_forward
from layerstep.process.frames import OURS
from layerstep.rerun.copies import Copies
from layerstep.rerun.kv_caches import Caches, CallProgress
from layerstep.rerun.module_call import leaving_no_trace, length_of
from layerstep.rerun.twins import twin_of
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.format import human_bytes, number
from layerstep.tensors.observing import observing

__all__ = ["write_onnx_file"]

MOST_BYTES = 2_000_000_000
"""A file of protobuf holds 2 GiB at most."""

MOST_CHARACTERS = 160
"""Of what torch says is in the way."""

Call = tuple[tuple[Any, ...], dict[str, Any]]


def write_onnx_file(session: Session, module: nn.Module, call: Call, path: Path) -> str:
    """Write a module as it runs on these arguments; how far the file gives the same as the model.

    It runs on copies, in evaluation mode and without autocast. Nothing of the run changes.
    """
    import onnx
    import onnxscript  # noqa: F401 - torch imports it; without it the extra is missing

    size = sum(tensor.numel() * tensor.element_size() for tensor in _weights(module))
    if size > MOST_BYTES:
        words = f"its weights take {human_bytes(size)}, and an ONNX file holds 2 GB"
        raise UserError(f"the model is too large for one file: {words}", "`export model.graph.json`")
    with contextlib.ExitStack() as stack:
        stack.enter_context(leaving_no_trace(session, module))
        stack.enter_context(no_grad_unseen())
        stack.enter_context(_no_log_of_this_thread())
        with observing():
            twin = twin_of(module).eval()
            copies = [_copied(session, call) for _ in range(3)]
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
        # With function modes on, torch's encoder layers are not one fused kernel, which ONNX lacks.
        with function_modes_on(), replacing_forward(twin, _tensors_only(twin.forward)):
            program = _exported(twin, *copies[0])
            note = _compared(program, twin, copies[1], copies[2])
        program.save(path, external_data=False)
        onnx.checker.check_model(str(path))
        return note


def _weights(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _copied(session: Session, call: Call) -> Call:
    copies = Copies(CallProgress.DURING, length_of(*call), session.instruments.get(Caches))
    return copies.of(call[0]), copies.of(call[1])


def _tensors_only(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that returns its tensors: a key-value cache is of no type that torch can export."""

    @functools.wraps(forward)  # torch asks for the names of its arguments
    def flat(*args: Any, **kwargs: Any) -> list[Tensor]:
        return tensors_of(forward(*args, **kwargs))

    return flat


def _exported(twin: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    graph: Any = None
    try:
        graph = torch.export.export(twin, args, kwargs, strict=False)
        return torch.onnx.export(graph, dynamo=True, verbose=False)
    except Exception as error:  # of torch's exporters, which do not take every model
        what, where = _hindrance(error, graph)
        raise UserError(f"the model cannot become ONNX: {what}{where}", "`export model.graph.json`") from None


def _hindrance(error: BaseException, graph: Any) -> tuple[str, str]:
    """The operation that cannot be exported, and the line of the program that it comes from."""
    text = "\n".join(str(each) for each in _chain(error))
    deepest = list(_chain(error))[-1]
    what = first_line(deepest).strip().rstrip(".")[:MOST_CHARACTERS]
    node = re.search(r"translating node %(\w+) .*?target=torch\.ops\.([\w.]+?)(?:\.default)?\]", text)
    if node is not None:
        if "No ONNX function found" in what:
            return f"there is no ONNX operator for {node[2]}", _line_of_node(graph, node[1], node[2])
        return f"{node[2]}: {what}", _line_of_node(graph, node[1], node[2])
    if "data-dependent" in what:
        what = "the program decides by a value of a tensor, which a graph cannot"
    return what, _line_of_text(text) or _line_of_traceback(deepest.__traceback__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        seen.add(id(now))
        yield now
        now = now.__cause__ or now.__context__


def _line_of_node(graph: Any, name: str, op: str) -> str:
    """Torch keeps the line with each node; an operation may be a part of the one that the program called."""
    nodes, short = list(graph.graph.nodes), op.split(".")[1]
    same = [node for node in nodes if node.name == name]
    like = [node for node in nodes if short in str(node.target)]
    for node in same + like:
        line = _line_of_text(node.meta.get("stack_trace") or "")
        if line:
            return line
    return ""


_FILE = re.compile(r'File "([^"]+)", line (\d+)')


def _line_of_text(text: str) -> str:
    """The last line of the program that a text of torch names."""
    found = [(file, line) for file, line in _FILE.findall(text) if _is_of_program(file)]
    return f" ({Path(found[-1][0]).name}:{found[-1][1]})" if found else ""


def _line_of_traceback(trace: TracebackType | None) -> str:
    frames = [frame for frame in traceback.extract_tb(trace) if _is_of_program(frame.filename)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


_EXPORTERS = (os.path.dirname(torch.__file__), OURS, "<")


def _is_of_program(file: str) -> bool:
    """Is it a line of the program or of a library of models?"""
    return not file.startswith(_EXPORTERS) and "onnxscript" not in file


def _compared(program: Any, twin: nn.Module, ours: Call, theirs: Call) -> str:
    """Run the file in onnxruntime, if that is installed, and the copy of the model; how far they differ."""
    checked = "onnx.checker accepts it"
    if find_spec("onnxruntime") is None:
        return f"{checked}; it was not run: onnxruntime is not installed"
    expected = tensors_of(twin(*ours[0], **ours[1]))
    try:
        found = tensors_of(program(*theirs[0], **theirs[1]))
    except Exception as error:  # a dtype or an operator that onnxruntime lacks
        return f"{checked}; onnxruntime cannot run it: {first_line(error)[:120]}"
    if [one.shape for one in found] != [one.shape for one in expected]:
        return f"{checked}; onnxruntime gives outputs of other shapes"
    most = max((_gap(one, other) for one, other in zip(found, expected, strict=True)), default=0.0)
    return f"{checked}; onnxruntime differs from the model by {number(most)} at most"


def _gap(one: Tensor, other: Tensor) -> float:
    if not one.numel():
        return 0.0
    wide = torch.complex128 if other.is_complex() else torch.float64
    gap = (one.to(wide) - other.to(wide)).abs()
    return float(gap.nan_to_num(0.0).max())


@contextlib.contextmanager
def _no_log_of_this_thread() -> Iterator[None]:
    """Torch's exporters log what they skip. The records of other threads pass."""
    me = threading.get_ident()
    loggers = [logging.getLogger(name) for name in ("", "torch", "onnxscript", "onnx_ir")]
    loggers += [each for name, each in _named_loggers() if name.startswith("torch.")]
    handlers = {id(handler): handler for logger in loggers for handler in logger.handlers}
    if logging.lastResort is not None:
        handlers[id(logging.lastResort)] = logging.lastResort

    def passes(record: logging.LogRecord) -> bool:
        return record.thread != me

    for handler in handlers.values():
        handler.addFilter(passes)
    try:
        yield
    finally:
        for handler in handlers.values():
            handler.removeFilter(passes)


def _named_loggers() -> list[tuple[str, logging.Logger]]:
    found = list(logging.root.manager.loggerDict.items())
    return [(name, logger) for name, logger in found if isinstance(logger, logging.Logger)]
