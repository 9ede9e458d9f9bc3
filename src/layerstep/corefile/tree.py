"""The modules of all models as a list: each with its class, settings, parameters and children by number."""

from __future__ import annotations

import linecache
import re
from typing import Any

from torch import Tensor, nn

from layerstep._torch import is_scripted, unwrap
from layerstep.corefile.sources import Sources
from layerstep.corefile.values import ValueEncoder, without_home
from layerstep.module_paths.models import Models

__all__ = ["Modules", "own_tensors"]

MOST_ATTRIBUTES, MOST_TEXT = 40, 100


class Modules:
    """Numbers the modules of a run in the order of their trees. A shared module has one number."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._numbers: dict[int, int] = {}
        self._modules: list[nn.Module] = []
        for model in models:
            if (root := model.root) is not None:
                self._walk(root)

    def _walk(self, root: nn.Module) -> None:
        waiting = [root]
        while waiting:
            module = waiting.pop()
            if id(module) in self._numbers:
                continue
            self._numbers[id(module)] = len(self._modules)
            self._modules.append(module)
            waiting.extend(reversed(list(_children(module).values())))

    def __len__(self) -> int:
        return len(self._modules)

    def number_of(self, module: nn.Module) -> int | None:
        return self._numbers.get(id(unwrap(module)))

    def add(self, module: nn.Module) -> int:
        """The number of a module. A module of no model comes after all others."""
        if self.number_of(module) is None:
            self._walk(unwrap(module))
        return self._numbers[id(unwrap(module))]

    def encode(self, values: ValueEncoder, sources: Sources) -> dict[str, Any]:
        """Models, modules and classes. Tensors that are not in the file yet go into it by shape only."""
        kinds: dict[type, int] = {}
        modules = []
        for module in self._modules:
            kind = kinds.setdefault(type(module), len(kinds))
            modules.append(self._module(module, values) | {"class": kind})
        models = [
            {
                "name": model.name,
                "root": self.number_of(root),
                "forwards": model.forwards,
                "compiled": model.compiled,
            }
            for model in self._models
            if (root := model.root) is not None
        ]
        return {"models": models, "modules": modules, "classes": [_class(kind, sources) for kind in kinds]}

    def _module(self, module: nn.Module, values: ValueEncoder) -> dict[str, Any]:
        def numbers(of: dict[str, Tensor | None]) -> dict[str, int | None]:
            return {
                name: None if tensor is None else values.tensors.add(tensor, name, keep=False)
                for name, tensor in of.items()
            }

        parameters, buffers = own_tensors(module)
        return {
            "extra": _extra(module),
            "training": bool(module.training),
            "parameters": numbers(parameters),
            "buffers": numbers(buffers),
            "children": {name: self.number_of(child) for name, child in _children(module).items()},
            "attributes": {
                name: values.encode(value, name) for name, value in _settings(module.__dict__).items()
            },
        }


def own_tensors(module: nn.Module) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None]]:
    """The own parameters and buffers of a module; of a scripted one also those of its parts."""
    if is_scripted(module):
        return dict(module.named_parameters()), dict(module.named_buffers())
    return dict(module._parameters), dict(module._buffers)


def _children(module: nn.Module) -> dict[str, nn.Module]:
    if is_scripted(module):
        return {}
    return {name: unwrap(child) for name, child in module._modules.items() if child is not None}


def _settings(names: dict[str, Any]) -> dict[str, Any]:
    """The attributes that are numbers or short words: `eps`, `num_heads`, `padding`."""
    found = {
        name: value
        for name, value in names.items()
        if not name.startswith("_") and name != "training" and _is_setting(value)
    }
    return dict(list(found.items())[:MOST_ATTRIBUTES])


def _is_setting(value: Any) -> bool:
    if type(value) in (tuple, list):
        return len(value) <= 16 and all(type(item) in (bool, int, float) for item in value)
    if type(value) is str:
        return len(value) <= MOST_TEXT and not re.search(r"[/\\]", value)
    return value is None or type(value) in (bool, int, float)


def _extra(module: nn.Module) -> str:
    try:
        return without_home(" ".join(str(module.extra_repr()).split()))[:500]
    except Exception:  # the user's own method
        return ""


def _class(kind: type, sources: Sources) -> dict[str, Any]:
    forward = sources.function(getattr(kind, "forward", None))
    return {
        "name": kind.__name__,
        "module": kind.__module__,
        "line": _line_of(kind),
        "forward": forward,
        "holds_many": issubclass(kind, (nn.Sequential, nn.ModuleList, nn.ModuleDict)),
    }


def _line_of(kind: type) -> int | None:
    """The line of a class in its file. `inspect` would parse the whole file for each class."""
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    if code is None:
        return None
    pattern = re.compile(rf"\s*class\s+{re.escape(kind.__name__)}\b")
    lines = linecache.getlines(code.co_filename)
    return next((number for number, line in enumerate(lines, 1) if pattern.match(line)), None)
