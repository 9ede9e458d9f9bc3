"""Rebuild the contents of a core file: modules that look like the run's, its stack, its values.

The modules have the names of their classes, the parameters that are in the file, and shapes for the others.
So every command that only looks works on them. They have no code: nothing in a file is run.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from layerstep.calls.backward import Call, State
from layerstep.calls.events import Phase
from layerstep.corefile.container import read_file
from layerstep.corefile.restored_tensors import RestoredTensors
from layerstep.corefile.sources import RestoredSources
from layerstep.corefile.streams import Streams
from layerstep.corefile.values import decode, missing_in
from layerstep.errors import RecordingError, UserError

__all__ = ["RestoredCall", "RestoredCore", "RestoredModule", "read_core"]


class RestoredModule(nn.Module):
    """A module from a file: its contents without its code."""

    def __init__(self, extra: str) -> None:
        super().__init__()
        self._extra = extra

    def extra_repr(self) -> str:
        return self._extra


class RestoredContainer(RestoredModule):
    """A list or a dictionary of modules from a file."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        is_list = all(name.isdecimal() for name in self._modules)
        return iter(self._modules.values()) if is_list else iter(self._modules)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._modules[key]
        return list(self._modules.values())[key]


def _no_code(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    name = type(self).__name__
    raise UserError(f"{name} comes from a core file, without its code", "`layerstep open FILE --model …`")


@dataclass(slots=True)
class RestoredCall:
    """One module call of the stack in the file."""

    module: nn.Module | None
    path: str
    state: str
    depth: int
    hooked: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    has_output: bool
    output: Any
    caller: types.FrameType | None
    within: types.FrameType | None
    """Where its own code was, at an exception."""
    call: Call | None


@dataclass(slots=True)
class RestoredCore:
    """An opened file."""

    path: Path
    contents: dict[str, Any]
    segments: dict[str, Tensor]
    roots: list[tuple[nn.Module, str, int]]
    """Each model: its root, its name, how often it ran."""
    stack: list[RestoredCall]
    calls: list[tuple[nn.Module, tuple[Any, Any, Any]]]
    recordings: list[dict[str, Any]]
    streams: Streams
    sources: RestoredSources
    modules: list[nn.Module]

    @property
    def selected(self) -> RestoredCall:
        """The selected call of the stack."""
        index: int = self.contents["stop"]["selected"]
        return self.stack[index]

    @property
    def phase(self) -> Phase | None:
        phase = self.contents["stop"]["phase"]
        return Phase(phase) if phase is not None else None

    @property
    def exception(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.contents["exception"]
        return found

    @property
    def missing(self) -> list[str]:
        """What a rerun of the selected module needs and the file does not have."""
        chosen = self.selected
        if chosen.module is None:
            return ["a module"]
        state = [*chosen.module.named_parameters(), *chosen.module.named_buffers()]
        return [
            *missing_in(chosen.args, "args"),
            *missing_in(chosen.kwargs),
            *(f"{name} (weight)" for name, tensor in state if hasattr(tensor, "not_in_core")),
        ]

    def fresh_inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the selected module, in their own memory."""
        entry = self.contents["stack"][self.contents["stop"]["selected"]]
        tensors = RestoredTensors(self.contents["tensors"], self.segments, copied=True)
        args, kwargs = (decode(entry[name], tensors, self.modules.__getitem__) for name in ("args", "kwargs"))
        return args, kwargs


def read_core(path: Path) -> RestoredCore:
    """Open a file; raises a `RecordingError` of one line if it is damaged."""
    contents, segments = read_file(path)
    try:
        return _rebuild(path, contents, segments)
    except RecordingError as error:
        raise RecordingError(f"{path} is damaged; {error}") from None
    except Exception as error:  # a damaged description can cause any error
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:120]
        raise RecordingError(f"{path} is damaged; {reason}") from None


def _rebuild(path: Path, contents: dict[str, Any], segments: dict[str, Tensor]) -> RestoredCore:
    tensors = RestoredTensors(contents["tensors"], segments)
    sources = RestoredSources(contents["sources"])
    tree = contents["tree"]
    modules = _modules(tree, tensors, sources)

    def value(encoded: Any) -> Any:
        return decode(encoded, tensors, modules.__getitem__)

    roots = [(modules[model["root"]], str(model["name"]), int(model["forwards"])) for model in tree["models"]]
    core = RestoredCore(
        path,
        contents,
        segments,
        roots=roots,
        stack=_stack(contents["stack"], modules, sources, value=value),
        calls=[(modules[call["module"]], value(call["values"])) for call in contents["calls"]],
        recordings=[
            {**entry, "facts": value(entry["facts"]), "value": value(entry["value"])}
            for entry in contents["recordings"]
        ],
        streams=Streams.decode(contents["random"], value),
        sources=sources,
        modules=modules,
    )
    _check(core)
    return core


def _check(core: RestoredCore) -> None:
    """Read now what is needed later, so that damage shows at once."""
    stop, modes, made_by = (core.contents[name] for name in ("stop", "modes", "environment"))
    _ = core.selected, core.phase, core.missing, core.contents["left_out"], core.contents["points"]
    _ = [stop[name] for name in ("reason", "trouble", "forward", "step", "model", "local", "time")]
    _ = [modes[name] for name in ("grad", "inference", "autocast", "default_dtype", "threads")]
    _ = [made_by[name] for name in ("layerstep", "python", "torch", "platform", "cpus", "devices")]
    if core.exception is not None:
        _ = [core.exception[name] for name in ("type", "message", "notes", "traceback")]


def _modules(tree: dict[str, Any], tensors: RestoredTensors, sources: RestoredSources) -> list[nn.Module]:
    kinds = [_class(entry, sources) for entry in tree["classes"]]
    modules = [kinds[entry["class"]](str(entry["extra"])) for entry in tree["modules"]]
    for module, entry in zip(modules, tree["modules"], strict=True):
        for name, value in entry["attributes"].items():
            module.__dict__[str(name)] = decode(value, tensors)
        for name, number in entry["parameters"].items():
            module._parameters[name] = None if number is None else _as_parameter(tensors.get(number))
        for name, number in entry["buffers"].items():
            module._buffers[name] = None if number is None else tensors.get(number)
        for name, number in entry["children"].items():
            module._modules[name] = modules[number]
        module.training = bool(entry["training"])
    return modules


def _as_parameter(tensor: Tensor) -> Any:
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)


def _class(entry: dict[str, Any], sources: RestoredSources) -> type[RestoredModule]:
    forward = types.FunctionType(_no_code.__code__, globals(), "forward")
    if (code := sources.code(entry["forward"])) is not None:
        # The function that is called has no source; the one that it wraps is only shown.
        forward.__wrapped__ = types.FunctionType(code, {}, "forward")  # type: ignore[attr-defined]
    else:
        forward.__code__ = forward.__code__.replace(co_filename="<core>")
    base = RestoredContainer if entry["holds_many"] else RestoredModule
    made = type(str(entry["name"]), (base,), {"forward": forward})
    made.__module__ = str(entry["module"])
    return made


def _stack(
    entries: list[dict[str, Any]],
    modules: list[nn.Module],
    sources: RestoredSources,
    *,
    value: Callable[[Any], Any],
) -> list[RestoredCall]:
    stack: list[RestoredCall] = []
    parent: Call | None = None
    for entry in reversed(entries):  # the outermost first: a call in the backward pass knows its parent
        module = modules[entry["module"]] if entry["module"] is not None else None
        if "call" in entry and module is not None:
            parent = _call(entry["call"], module, parent, sources=sources, value=value)
        stack.append(
            RestoredCall(
                module=module,
                path=str(entry["path"]),
                state=str(entry["state"]),
                depth=int(entry["depth"]),
                hooked=bool(entry["hooked"]),
                args=tuple(value(entry["args"])),
                kwargs=dict(value(entry["kwargs"])),
                has_output="output" in entry,
                output=value(entry["output"]) if "output" in entry else None,
                caller=_frame(entry["caller"], sources, value),
                within=_frame(entry["within"], sources, value),
                call=parent if "call" in entry else None,
            )
        )
    return stack[::-1]


def _frame(
    site: dict[str, Any] | None, sources: RestoredSources, value: Callable[[Any], Any]
) -> types.FrameType | None:
    if site is not None and "locals" in site:
        site = {**site, "locals": {name: value(item) for name, item in site["locals"].items()}}
    return sources.frame(site)


def _call(
    entry: dict[str, Any],
    module: nn.Module,
    parent: Call | None,
    *,
    sources: RestoredSources,
    value: Callable[[Any], Any],
) -> Call:
    depth = parent.depth + 1 if parent is not None else 1
    call = Call(module, int(entry["forward"]), 0, parent, depth, ())
    call.state = State(entry["state"])
    call.grad_out, call.grad_in = value(entry["grad_out"]), value(entry["grad_in"])
    place = entry["made_at"]
    call.made_at = (sources.file(place), int(place["line"])) if place is not None else ("", 0)
    return call
