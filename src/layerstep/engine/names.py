"""Module paths of one model: `encoder.0.attn`, as in its `state_dict`."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator

from torch import nn

from layerstep.engine._torch import is_scripted, unwrap

__all__ = ["Names"]


class Names:
    """The paths of a model's modules, held weakly so that a debugger keeps no model alive.

    A module registered at two places has two paths; its children are listed below the first and
    reachable through both. Wrappers (DDP, torch.compile) and the inside of a TorchScript module have none.
    """

    def __init__(self, root: nn.Module) -> None:
        self._modules: dict[str, weakref.ref[nn.Module]] = {}
        self._paths: dict[int, list[str]] = defaultdict(list)
        self._by_last: dict[str, list[str]] = defaultdict(list)
        self._add(unwrap(root), "")

    def _add(self, root: nn.Module, path: str) -> None:
        waiting: list[tuple[nn.Module, str]] = [(root, path)]
        while waiting:
            module, path = waiting.pop()
            known = id(module) in self._paths
            self._paths[id(module)].append(path)
            self._modules[path] = weakref.ref(module)
            self._by_last[path.rpartition(".")[2]].append(path)
            if known or is_scripted(module):
                continue
            prefix = path + "." if path else ""
            children = [
                (unwrap(child), prefix + name) for name, child in module._modules.items() if child is not None
            ]
            waiting.extend(reversed(children))

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[tuple[str, nn.Module]]:
        """Every path and its module, in the order of `named_modules()`."""
        for path, reference in self._modules.items():
            module = reference()
            if module is not None:
                yield path, module

    def paths_of(self, module: nn.Module) -> list[str]:
        """All paths of a module, the first one first; empty if it is not of this model."""
        paths = self._paths.get(id(module), [])
        if paths and self.module_at(paths[0]) is not module:
            return []  # the id of a module that is gone was given to another
        return paths

    def module_at(self, path: str) -> nn.Module | None:
        """The module at exactly this path, also below a second name of a shared module."""
        reference = self._modules.get(path)
        if reference is not None:
            return reference()
        head, _, name = path.rpartition(".")
        parent = self.module_at(head) if head else self.root
        if parent is None or is_scripted(parent):
            return None
        child = parent._modules.get(name)
        return unwrap(child) if child is not None else None

    @property
    def root(self) -> nn.Module | None:
        return self._modules[""]()

    def ending_in(self, tail: str) -> list[str]:
        """The paths of which `tail` is the end, whole segments only."""
        last = tail.rpartition(".")[2]
        return [p for p in self._by_last.get(last, ()) if p == tail or p.endswith("." + tail)]

    def children_of(self, path: str) -> list[tuple[str, nn.Module]]:
        """The direct children of the module at a path, as (name, module), wrappers left out."""
        module = self.module_at(path)
        if module is None or is_scripted(module):
            return []
        return [(name, unwrap(child)) for name, child in module._modules.items() if child is not None]

    def parent_of(self, path: str) -> nn.Module | None:
        return self.module_at(path.rpartition(".")[0]) if path else None
