"""Module paths of one model: `encoder.0.attn`, as in its `state_dict`."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator

from torch import nn

from layerstep._torch import is_scripted, unwrap

__all__ = ["Names"]


class Names:
    """The paths of a model's modules, held weakly so that a debugger keeps no model alive.

    A module registered at two places has two paths; its children are listed below the first and
    reachable through both. Wrappers (DDP, torch.compile) and the inside of a TorchScript module have none.
    """

    def __init__(self, root: nn.Module) -> None:
        self._modules: dict[str, weakref.ref[nn.Module]] = {}
        self._paths: dict[int, list[str]] = {}
        self._by_last: dict[str, list[str]] | None = None
        self._add(unwrap(root))

    def _add(self, root: nn.Module) -> None:
        """Walk the tree once; 10,000 modules take some 20 ms."""
        modules, paths = self._modules, self._paths
        waiting: list[tuple[nn.Module, str]] = [(root, "")]
        while waiting:
            module, path = waiting.pop()
            modules[path] = weakref.ref(module)
            key = id(module)
            if key in paths:
                paths[key].append(path)
                continue
            paths[key] = [path]
            inside = module._modules
            if inside and not is_scripted(module):
                prefix = path + "." if path else ""
                named = [
                    (unwrap(child), prefix + name) for name, child in inside.items() if child is not None
                ]
                waiting.extend(reversed(named))

    def is_current(self) -> bool:
        """Does the model still have these modules in these places? Cheaper than looking them all up again."""
        root = self.root
        count = 0
        waiting = [root] if root is not None else []
        seen: set[int] = set()
        paths = self._paths
        while waiting:
            module = waiting.pop()
            key = id(module)
            count += 1
            if key in seen:
                continue
            seen.add(key)
            if key not in paths:
                return False
            if module._modules and not is_scripted(module):
                waiting.extend(unwrap(child) for child in module._modules.values() if child is not None)
        return count == len(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[tuple[str, nn.Module]]:
        """Every path and its module, in the order of `named_modules()`."""
        for path, reference in self._modules.items():
            module = reference()
            if module is not None:
                yield path, module

    def has_id(self, key: int) -> bool:
        """May a module with this id be of this model?"""
        return key in self._paths

    def paths_of(self, module: nn.Module) -> list[str]:
        """All paths of a module, the first one first; empty if it is not of this model."""
        paths = self._paths.get(id(module))
        if not paths:
            return []
        known = self._modules.get(paths[0])
        if (known() if known is not None else self.module_at(paths[0])) is not module:
            return []  # the id of a module that is gone was given to another
        return paths

    def module_at(self, path: str) -> nn.Module | None:
        """The module at exactly this path, also below a second name of a shared module."""
        head, names = path, list[str]()
        while head not in self._modules:  # the root is always there
            head, _, name = head.rpartition(".")
            names.append(name)
        module = self._modules[head]()
        while names:
            if module is None or is_scripted(module):
                return None
            child = module._modules.get(names.pop())
            module = unwrap(child) if child is not None else None
        return module

    @property
    def root(self) -> nn.Module | None:
        return self._modules[""]()

    def ending_in(self, tail: str) -> list[str]:
        """The paths of which `tail` is the end, whole segments only."""
        if self._by_last is None:
            self._by_last = defaultdict(list)
            for path in self._modules:
                self._by_last[path.rpartition(".")[2]].append(path)
        same_end = self._by_last.get(tail.rpartition(".")[2], ())
        return [path for path in same_end if path == tail or path.endswith("." + tail)]

    def children_of(self, path: str) -> list[tuple[str, nn.Module]]:
        """The direct children of the module at a path, as (name, module), wrappers left out."""
        module = self.module_at(path)
        if module is None or is_scripted(module):
            return []
        return [(name, unwrap(child)) for name, child in module._modules.items() if child is not None]

    def parent_of(self, path: str) -> nn.Module | None:
        return self.module_at(path.rpartition(".")[0]) if path else None
