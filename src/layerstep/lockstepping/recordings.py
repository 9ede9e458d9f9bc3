"""Runs in files: what every layer got and returned, to be compared later or elsewhere.

The file is a .safetensors with the calls as JSON in its metadata. Tensors that other tools have written by
name, as .safetensors or .pt, can be read as a run too: then there are outputs, and no inputs or weights. So
can core files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerstep.corefile import SUFFIX, RestoredCore, read_core
from layerstep.errors import RecordingError, UserError, first_line
from layerstep.files import replacing
from layerstep.lockstepping.trace import Call, Keeper, Kept, Trace
from layerstep.tensors.files import FileReference, read_tensors

__all__ = ["SUFFIXES", "read_run", "write_run"]

FORMAT, VERSION = "layerstep-run", "1"
SUFFIXES = (".safetensors", ".pt", ".pth", SUFFIX)


def write_run(trace: Trace, path: Path) -> None:
    """Write a run, whole or not at all."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}

    def put(tensor: Tensor) -> str:
        if id(tensor) not in names:
            names[id(tensor)] = name = f"t{len(names)}"
            tensors[name] = tensor.detach().to("cpu").contiguous().clone()
        return names[id(tensor)]

    def values(kept: list[Kept]) -> list[Any]:
        return [[each.name, put(each.values), list(each.shape), each.is_sample] for each in kept]

    numbers = {id(call): at for at, call in enumerate(trace.calls)}
    calls = [
        {
            "path": call.path,
            "number": call.number,
            "kind": call.kind,
            "parent": numbers[id(call.parent)] if call.parent is not None else None,
            "times": [call.entered, call.left],
            "inputs": values(call.inputs),
            "outputs": values(call.outputs),
            "weights": {name: put(each) for name, each in call.weights.items()},
            "buffers": {name: put(each) for name, each in call.buffers.items()},
            "settings": call.settings,
        }
        for call in trace.calls
    ]
    run = {"title": trace.title, "raised": trace.raised, "drew": trace.drew, "calls": calls}
    metadata = {"format": FORMAT, "version": VERSION, "run": json.dumps(run)}
    with replacing(path) as new:
        save_file(tensors, new, metadata=metadata)


def read_run(path: Path) -> Trace:
    """Read a run; a `UserError` in one line if there is none in the file."""
    if path.suffix == SUFFIX:
        try:
            return _of_core(read_core(path))
        except RecordingError as error:
            raise UserError(str(error)) from None
    contents = _contents(path) if path.suffix == ".safetensors" else None
    if contents is not None:
        try:
            return _restored(path, contents)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UserError(f"{path} is damaged", f"{type(error).__name__}: {error}"[:120]) from None
    found = read_tensors(FileReference(str(path), path, ""))
    named = _named(found)
    if not named:
        raise UserError(f"no run in {path}", "`lockstep save MODEL FILE` writes one")
    return _of_outputs(path.name, named)


def _contents(path: Path) -> dict[str, Any] | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as opened:
            metadata = opened.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {path}", first_line(error)[:120]) from None
    if metadata.get("format") != FORMAT:
        return None
    if metadata.get("version") != VERSION:
        raise UserError(f"{path} was written by another version of layerstep")
    try:
        run: dict[str, Any] = json.loads(metadata["run"])
    except (KeyError, ValueError) as error:
        raise UserError(f"{path} is damaged", first_line(error)[:120]) from None
    return run


def _restored(path: Path, run: dict[str, Any]) -> Trace:
    from safetensors.torch import load_file

    tensors = load_file(path)
    trace = Trace(path.name, raised=str(run["raised"]), drew=bool(run["drew"]))
    state: dict[str, Tensor] = {}

    def kept(rows: list[Any]) -> list[Kept]:
        return [Kept(str(name), tensors[key], tuple(shape), bool(part)) for name, key, shape, part in rows]

    for entry in run["calls"]:
        parent = trace.calls[entry["parent"]] if entry["parent"] is not None else None
        call = Call(str(entry["path"]), int(entry["number"]), str(entry["kind"]), parent, *entry["times"])
        call.inputs, call.outputs = kept(entry["inputs"]), kept(entry["outputs"])
        call.weights = {name: tensors[key] for name, key in entry["weights"].items()}
        call.buffers = {name: tensors[key] for name, key in entry["buffers"].items()}
        call.settings = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in entry["settings"].items()
        }
        state.update({f"{call.path}.{name}": each for name, each in call.weights.items()})
        if parent is not None:
            parent.parts.append(call)
        trace.calls.append(call)
    trace.state = state
    if not trace.calls:
        raise ValueError("it holds no call")
    return trace


def _named(found: Any) -> dict[str, Tensor]:
    if not isinstance(found, Mapping):
        return {}
    return {str(name): each for name, each in found.items() if isinstance(each, torch.Tensor)}


def _of_outputs(title: str, named: dict[str, Tensor]) -> Trace:
    """Outputs by name, in the order in which they are in the file."""
    root = Call("", 1, "", None, 0, left=2 * len(named) + 1)
    trace = Trace(title, [root])
    for at, (name, tensor) in enumerate(named.items()):
        call = Call(name, 1, "", root, 2 * at + 1, left=2 * at + 2)
        call.outputs = [Kept("", tensor, tuple(tensor.shape))]
        root.parts.append(call)
        trace.calls.append(call)
    return trace


def _of_core(core: RestoredCore) -> Trace:
    """The calls that a core file has kept: those that were passed, recorded, or on its stack."""
    root = Call("", 1, "", None, 0, left=1 << 30)
    trace = Trace(core.path.name, [root])
    paths = {id(part): path for model, _, _ in core.roots for path, part in model.named_modules()}
    found: dict[str, tuple[nn.Module | None, Any, Any]] = {}
    for entry in core.recordings:
        found[entry["path"]] = (None, (), entry["value"])
    for module, (args, kwargs, output) in core.calls:
        found[paths.get(id(module), "")] = (module, (args, kwargs), output)
    for each in core.stack:
        if each.module is not None and each.has_output:
            found[paths.get(id(each.module), each.path)] = (
                each.module,
                (each.args, each.kwargs),
                each.output,
            )
    keeper = Keeper()
    for at, (path, (owner, given, output)) in enumerate(found.items()):
        if not path:
            continue
        kind = type(owner).__name__ if owner is not None else ""
        call = Call(path, 1, kind, root, 2 * at + 1, left=2 * at + 2)
        call.inputs, call.outputs = keeper.keep(given), keeper.keep(output)
        if owner is not None:
            weights = owner.named_parameters()
            call.weights = {name: each for name, each in weights if not hasattr(each, "not_in_core")}
        if call.outputs:
            root.parts.append(call)
            trace.calls.append(call)
    if len(trace.calls) == 1:
        raise UserError(
            f"no output of a layer is in {core.path.name}", "`record WHERE --tensors` before `dump`"
        )
    return trace
