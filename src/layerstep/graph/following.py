"""Follows one rerun of a model: every module call, every function of torch, and the values between them."""

from __future__ import annotations

import contextlib
import inspect
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerstep._torch.guards import functions_off
from layerstep._torch.saved import key_of
from layerstep._torch.tensors import is_tensor, size_of, version_of
from layerstep._torch.trees import tree_map
from layerstep.calls.operations import is_question, name_of, place_of, writes
from layerstep.graph.model_graph import Flow, ModuleCall, Operation, TensorKind
from layerstep.graph.provenance import Provenance
from layerstep.graph.statistics import Statistic
from layerstep.hooks.temporary import watching_both_ends
from layerstep.module_paths.models import Models
from layerstep.rerun.module_call import Watcher
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.shapes import dtype_name, shape_of, tensors_in

__all__ = ["Following"]

MOST_KINDS = 10_000
_CONTAINERS = (Tensor, tuple, list, dict)


@dataclass(slots=True, eq=False)
class _Open:
    index: int
    module: nn.Module
    parent: int
    number: int
    start: int
    inputs: tuple[Flow, ...]
    began: float


class Following(Watcher):
    """Its `calls` and `operations` are the graph when the rerun has ended."""

    def __init__(self, models: Models, module: nn.Module, statistic: Statistic) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._calls: dict[int, ModuleCall] = {}
        self._models = models
        self._statistic = statistic
        self._values = Provenance(module)
        self._stack: list[_Open] = []
        self._numbers: Counter[int] = Counter()
        self._modules: dict[int, tuple[nn.Module, str, int]] = {}
        self._hooks = contextlib.ExitStack()
        self._begun = 0

    @property
    def calls(self) -> tuple[ModuleCall, ...]:
        return tuple(self._calls[index] for index in sorted(self._calls))

    def __enter__(self) -> Any:
        self._hooks.enter_context(watching_both_ends(self._entered, self._left))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> Any:
        try:
            return super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            self._hooks.close()
            self._modules.clear()

    # --- functions ---

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_question(func) or not self._stack:
            return super().see(func, args, kwargs)
        given = tensors_of((args, kwargs))
        flows, versions = self._flows(given), [version_of(each) for each in given]
        result = super().see(func, args, kwargs)
        made = tensors_of(result)
        written = [each for each, before in zip(given, versions, strict=True) if version_of(each) != before]
        if given and versions[0] == -1 and writes(func):  # torch counts no writes in inference mode
            written = given[:1]
        if not made and not written:
            return result
        number = self._add(name_of(func), "op", flows, made or written, line=place_of(sys._getframe(1)).name)
        for each in written:
            self._values.written(each, number)
        known = {id(each) for each in given}
        if is_tensor(result) and id(result) in known:
            return result if any(result is each for each in written) else self._renamed(result, number)
        memory = {key_of(each) for each in given}
        for each in made:
            if id(each) not in known:
                self._values.made(each, number, is_view=key_of(each) in memory)
        return result

    def _renamed(self, tensor: Tensor, number: int) -> Tensor:
        """The same values as another tensor: what was returned can be told from what was given."""
        alias = tensor
        with functions_off(), contextlib.suppress(Exception):  # a kind of tensor that has no views
            alias = tensor.view_as(tensor)
        self._values.made(alias, number, is_view=True)
        return alias

    def _add(
        self, name: str, role: str, reads: tuple[Flow, ...], made: list[Tensor], *, line: str = ""
    ) -> int:
        call = self._stack[-1].index if self._stack and role not in ("input", "output") else -1
        number = len(self.operations)
        kinds = tuple(map(_kind_of, made))
        self.operations.append(Operation(number, name, role, call, reads, kinds, line))
        return number

    def _flows(self, tensors: list[Tensor]) -> tuple[Flow, ...]:
        found = ((self._values.sources(each), each) for each in tensors)
        return tuple(Flow(sources, _kind_of(each)) for sources, each in found if sources)

    # --- modules ---

    def _entered(self, module: nn.Module, caller: nn.Module | None, args: Any, kwargs: Any) -> None:
        while self._stack and self._stack[-1].module is not caller:
            if not any(each.module is caller for each in self._stack):
                break
            self._stack.pop()  # it has raised, and the model has gone on
        parent = self._stack[-1].index if self._stack else -1
        if parent < 0:
            self._take_inputs(module, args, kwargs)
        self._numbers[id(module)] += 1
        flows = self._flows(tensors_of((args, kwargs)))
        start, number = len(self.operations), self._numbers[id(module)]
        self._stack.append(_Open(self._begun, module, parent, number, start, flows, time.perf_counter()))
        self._begun += 1

    def _take_inputs(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        names = _names_of(module, args) + list(kwargs)
        found: dict[
            int, tuple[Tensor, list[str]]
        ] = {}  # a tensor may be given twice, as tokens and as labels
        for name, value in zip(names, (*args, *kwargs.values()), strict=True):
            for suffix, tensor in tensors_in(value):
                found.setdefault(id(tensor), (tensor, []))[1].append(f"{name}{suffix}")
        for tensor, places in found.values():
            number = self._add(", ".join(places), "input", (), [tensor])
            self._values.made(tensor, number, is_view=False)

    def _left(self, module: nn.Module, output: Any) -> Any:
        took = time.perf_counter()
        while self._stack and self._stack[-1].module is not module:
            self._stack.pop()
        if not self._stack:
            return None
        call = self._stack[-1]
        made = tensors_of(output)
        new = self._handed_on(call, made)
        if new and isinstance(output, _CONTAINERS):
            output = tree_map(lambda each: new.get(id(each), each), output)
            made = tensors_of(output)
        self._stack.pop()
        self._note(call, made, took - call.began)
        if call.parent < 0:
            self._add("output", "output", self._flows(made), [])
        return output if new else None

    def _handed_on(self, call: _Open, made: list[Tensor]) -> dict[int, Tensor]:
        """Those that no operation in the call has made: what it was given, or what we did not see."""
        new: dict[int, Tensor] = {}
        unseen = -1
        for tensor in made:
            sources = self._values.sources(tensor)
            if id(tensor) in new or any(each >= call.start for each in sources):
                continue
            if sources or self._values.is_state(tensor):
                number = self._add("", "pass", self._flows([tensor]), [tensor])
                new[id(tensor)] = self._renamed(tensor, number)
                continue
            if unseen < 0:
                unseen = self._add("", "unseen", call.inputs, made)
            self._values.made(tensor, unseen, is_view=False)
        return new

    def _note(self, call: _Open, made: list[Tensor], seconds: float) -> None:
        known = self._modules.get(id(call.module))
        if known is None:
            path = self._models.path_of(call.module).partition("|")[0]
            with functions_off():
                size = sum(each.numel() for each in call.module.parameters())
            known = self._modules[id(call.module)] = (call.module, path, size)
        kind = type(call.module)
        outputs = tuple(map(_kind_of, made))
        self._calls[call.index] = ModuleCall(
            call.index,
            known[1],
            kind.__name__,
            kind.__module__,
            call.parent,
            call.number,
            call.start,
            len(self.operations),
            call.inputs,
            outputs,
            known[2],
            seconds,
            self._statistic(call.module, made, seconds),
        )


def _names_of(module: nn.Module, args: tuple[Any, ...]) -> list[str]:
    try:
        names = [
            each.name
            for each in inspect.signature(module.forward).parameters.values()
            if each.kind is not inspect.Parameter.VAR_POSITIONAL
        ]
    except (TypeError, ValueError):  # compiled code
        names = []
    return [names[at] if at < len(names) else f"input{at}" for at in range(len(args))]


_kinds: dict[Any, TensorKind] = {}


def _kind_of(tensor: Tensor) -> TensorKind:
    with functions_off():
        is_plain = type(tensor) is Tensor and tensor.layout is torch.strided
        shape = tensor.shape if is_plain else shape_of(tensor)
        found = (shape, tensor.dtype, tensor.device)
        known = _kinds.get(found) if is_plain else None
        if known is None:
            kind = TensorKind(tuple(shape), dtype_name(tensor.dtype), str(tensor.device), size_of(tensor))
            if not is_plain:
                return kind
            if len(_kinds) > MOST_KINDS:
                _kinds.clear()
            known = _kinds[found] = kind
        return known
