"""What one forward of a model did: module calls, operations, and which value went where. Plain data."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

__all__ = ["FORMAT", "Flow", "ModelGraph", "ModuleCall", "Operation", "TensorKind"]

FORMAT = 1
"""The version of the JSON. It grows when a field changes its meaning or goes."""


@dataclass(frozen=True, slots=True)
class TensorKind:
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Flow:
    """A tensor that is read, and the operations that made what is in it: several after a write in place."""

    sources: tuple[int, ...]
    tensor: TensorKind


@dataclass(frozen=True, slots=True)
class Operation:
    """A function of torch that ran, or where values come in and go out."""

    index: int
    name: str
    role: str
    """`op`; `input` and `output` of the model; `pass` for a module that returns what it was given; `unseen`
    for a module whose operations torch does not show."""
    call: int
    """The innermost module call that it ran in; -1 for inputs and outputs."""
    reads: tuple[Flow, ...] = ()
    outputs: tuple[TensorKind, ...] = ()
    line: str = ""


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module."""

    index: int
    path: str
    kind: str
    """The class of the module."""
    package: str
    """Where that class is defined."""
    parent: int
    """The call that it ran in; -1 for the model itself."""
    number: int
    """Which call of this module it is, from 1."""
    start: int
    """The first operation that ran after the call began."""
    end: int
    """The first operation that ran after the call had ended."""
    inputs: tuple[Flow, ...]
    outputs: tuple[TensorKind, ...]
    parameters: int
    """Of the module and all below it, a tied one once."""
    seconds: float
    value: float | None = None
    """The statistic that `by` names."""


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """The calls in the order in which they began, and the operations in the order in which they ran."""

    model: str
    calls: tuple[ModuleCall, ...]
    operations: tuple[Operation, ...]
    by: str = ""
    notes: tuple[str, ...] = ()

    def edges(self) -> list[tuple[int, int]]:
        """Every pair of operations of which the second reads what the first made."""
        found = {(s, op.index): None for op in self.operations for flow in op.reads for s in flow.sources}
        return list(found)

    def to_json(self) -> str:
        """As `export model.graph.json` writes it."""
        return json.dumps({"layerstep_graph": FORMAT, **dataclasses.asdict(self)}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> ModelGraph:
        """What `to_json` wrote."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("layerstep_graph") != FORMAT:
            raise ValueError(f"this is not a graph of layerstep, format {FORMAT}")
        return cls(
            data["model"],
            tuple(_call(each) for each in data["calls"]),
            tuple(_operation(each) for each in data["operations"]),
            data["by"],
            tuple(data["notes"]),
        )


def _kind(data: dict[str, Any]) -> TensorKind:
    return TensorKind(**{**data, "shape": tuple(data["shape"])})


def _flow(data: dict[str, Any]) -> Flow:
    return Flow(tuple(data["sources"]), _kind(data["tensor"]))


def _call(data: dict[str, Any]) -> ModuleCall:
    inputs, outputs = tuple(map(_flow, data["inputs"])), tuple(map(_kind, data["outputs"]))
    return ModuleCall(**{**data, "inputs": inputs, "outputs": outputs})


def _operation(data: dict[str, Any]) -> Operation:
    reads, outputs = tuple(map(_flow, data["reads"])), tuple(map(_kind, data["outputs"]))
    return Operation(**{**data, "reads": reads, "outputs": outputs})
