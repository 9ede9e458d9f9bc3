"""The models of a run, and the paths of their modules.

With one model a path is as in its `state_dict`; with several it carries the model's name.
A module without parameters that a script calls by itself (a loss, say) has a name too. It does not count
when the models are told apart.
"""

from __future__ import annotations

import difflib
import threading
import weakref
from collections.abc import Iterable, Iterator

from torch import nn

from layerstep._torch import is_compiled, is_scripted, unwrap
from layerstep.errors import UnknownPath
from layerstep.module_paths.names import Names

__all__ = ["Model", "Models", "why_one_call"]


class Model:
    """One model: its name, its paths, how often it ran."""

    def __init__(self, root: nn.Module, name: str) -> None:
        self._given = weakref.ref(root)
        self.name = name
        self._begun = 0
        self._lock = threading.Lock()
        self._here = threading.local()
        self.compiled = is_compiled(root) or any(is_compiled(module) for module in root.modules())
        self.is_helper = next(root.parameters(), None) is None
        self._names: Names | None = None
        self._may_have_changed = False

    @property
    def given(self) -> nn.Module | None:
        """The module as the script calls it, wrappers and all."""
        return self._given()

    @property
    def root(self) -> nn.Module | None:
        given = self._given()
        return unwrap(given) if given is not None else None

    @property
    def names(self) -> Names:
        if self._names is None or (self._may_have_changed and not self._names.is_current()):
            root = self.root
            self._names = Names(root if root is not None else nn.Module())
        self._may_have_changed = False
        return self._names

    @property
    def forwards(self) -> int:
        """The number of the forward that this thread began last; of the last of all, if it began none."""
        return getattr(self._here, "forward", self._begun)

    def begin_forward(self) -> None:
        with self._lock:
            self._begun += 1
            self._here.forward = self._begun

    def had_forwards(self, count: int) -> None:
        """They were counted elsewhere: in a core file."""
        self._begun = count

    def refresh(self) -> None:
        """The model may have changed while it ran: look again when asked next, if it has."""
        self._may_have_changed = True


class Models:
    """Every model that the run has called or that was handed over."""

    def __init__(self) -> None:
        self._models: list[Model] = []
        self._by_root: dict[int, Model] = {}
        self._places: dict[int, tuple[weakref.ref[nn.Module], tuple[Model, str]]] = {}
        self.had_any = False
        """Was there a model, though it may be gone by now?"""

    def __iter__(self) -> Iterator[Model]:
        alive = [model for model in self._models if model.given is not None]
        if len(alive) < len(self._models):
            self._places.clear()
        self._models = alive
        return iter(alive)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, root: nn.Module, name: str) -> Model:
        """Take in a model; a known one that turns out to be a part of it gives way."""
        inside = {id(module) for module in root.modules()}
        self._models = [model for model in self if id(model.given) not in inside]
        model = Model(root, self._free_name(name or type(unwrap(root)).__name__, unwrap(root)))
        self._models.append(model)
        self._places.clear()  # with a second model, paths begin with the model's name
        self.had_any = True
        for one in (root, unwrap(root)):
            self._by_root[id(one)] = model
        return model

    def become(self, roots: Iterable[tuple[nn.Module, str, int]]) -> None:
        """Have these models and no others: (root, name, forwards so far), as a core file tells them."""
        self._models.clear()
        self._by_root.clear()
        for root, name, forwards in roots:
            self.add(root, name).had_forwards(forwards)

    def _free_name(self, name: str, root: nn.Module) -> str:
        taken = {model.name for model in self._models} | set(root._modules.keys())
        if name in taken:
            name = type(root).__name__
        base, number = name, 2
        while name in taken:
            name, number = f"{base}{number}", number + 1
        return name

    def refresh(self) -> None:
        self._places.clear()
        for model in self:
            model.refresh()

    @property
    def tappable(self) -> list[nn.Module]:
        """The outermost modules, without compiled ones and those that may be one fused kernel themselves."""
        roots = [model.root for model in self if not model.compiled]
        return [
            root for root in roots if root is not None and not isinstance(root, nn.TransformerEncoderLayer)
        ]

    @property
    def main(self) -> Model | None:
        """The model that `model` means at the prompt: the first with parameters."""
        models = list(self)
        return next((m for m in models if not m.is_helper), models[0] if models else None)

    @property
    def are_several(self) -> bool:
        return sum(not model.is_helper for model in self) > 1

    def owner_of(self, module: nn.Module) -> Model | None:
        for model in self._models:
            if model.given is not None and model.names.paths_of(module):
                return model
        return None

    def by_root(self, module: nn.Module) -> Model | None:
        """The model that a module is the root of, wrapped or not; asked at every outermost call."""
        model = self._by_root.get(id(module))
        if model is not None and (model.given is module or model.root is module):
            return model
        return None

    def full_path(self, model: Model, path: str) -> str:
        """A path as the user sees it."""
        if not path:
            return model.name
        if model.is_helper or self.are_several:
            return f"{model.name}.{path}"
        return path

    def paths_of(self, module: nn.Module) -> list[str]:
        """Every path of a module as the user sees it."""
        model = self.owner_of(module)
        if model is None:
            return []
        return [self.full_path(model, path) for path in model.names.paths_of(module)]

    def place_of(self, module: nn.Module) -> tuple[Model, str] | None:
        """The model of a module and its path, if it has only one. Kept: recordings ask at every call."""
        known = self._places.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        model, paths = self.owner_of(module), self.paths_of(module)
        if model is None or len(paths) != 1:
            return None
        self._places[id(module)] = (weakref.ref(module), place := (model, paths[0]))
        return place

    def path_of(self, module: nn.Module) -> str:
        """The path of a module; a module of no known model is shown by its type."""
        paths = self.paths_of(module)
        return "|".join(paths) if paths else f"<{type(module).__name__}>"

    def everything(self) -> Iterator[tuple[str, nn.Module]]:
        """(path as the user sees it, module) of all models."""
        several = self.are_several
        for model in self:
            prefix = f"{model.name}." if several or model.is_helper else ""
            for path, module in model.names:
                yield prefix + path if path else model.name, module

    def at(self, path: str) -> nn.Module | None:
        """The module at exactly this path as the user sees it."""
        named = self._below_name(path)
        if named is not None:
            return named[1]
        found = (model.names.module_at(path) for model in self if path)
        return next((module for module in found if module is not None), None)

    def find(self, text: str) -> tuple[str, nn.Module]:
        """The module at a path or at any unique tail of one."""
        exact = [
            (self.full_path(model, text), module)
            for model in self
            if text and (module := model.names.module_at(text)) is not None
        ]
        named = self._below_name(text)
        if named is not None and not exact:
            return named
        if len(exact) == 1:
            return exact[0]
        tails = exact or self.ending_in(text)
        if len(tails) == 1:
            return tails[0]
        if tails:
            raise _ambiguous(text, [path for path, _ in tails])
        raise self.unknown(text)

    def _below_name(self, text: str) -> tuple[str, nn.Module] | None:
        head, _, rest = text.partition(".")
        for model in self:
            if head == model.name and (module := model.names.module_at(rest)) is not None:
                return self.full_path(model, rest), module
        return None

    def ending_in(self, tail: str) -> list[tuple[str, nn.Module]]:
        """(path, module) of all paths that end in `tail`; one entry for a shared module."""
        found: dict[int, tuple[str, nn.Module]] = {}
        for model in self:
            for path in model.names.ending_in(tail):
                module = model.names.module_at(path)
                if module is not None:
                    found.setdefault(id(module), (self.full_path(model, path), module))
        return list(found.values())

    def scripted_above(self, path: str) -> str:
        """The TorchScript module that a path, or the tail of one, leads into; empty if it leads into none."""
        for whole, module in self.everything():
            if not is_scripted(module):
                continue
            inside = [f"{whole}.{name}" for name, _ in module.named_modules() if name]
            if f"{path}.".startswith(f"{whole}.") or any(f".{each}".endswith(f".{path}") for each in inside):
                return whole if whole != path else ""
        return ""

    def unknown(self, text: str) -> UnknownPath:
        """The error for a path that is nowhere: it is followed as far as it leads, then what is near."""
        if not len(self):
            why = "the models of the run are gone" if self.had_any else "no model has run yet"
            return UnknownPath(f"no module {text!r}", why)
        if whole := self.scripted_above(text):
            return UnknownPath(f"no module {text!r}", f"{why_one_call(whole)}; {whole} can be named")
        head, last = text, ""
        while head:
            head, _, last = head.rpartition(".")
            parents = self.ending_in(head) if head else [("", model.root) for model in self]
            children = [parent._modules.items() for _, parent in parents if parent is not None]
            names = {name for named in children for name, _ in named}
            close = difflib.get_close_matches(last, sorted(names), n=3, cutoff=0.5)
            if close or (head and parents):
                break
        if not close:
            segments = {path.rpartition(".")[2] for path, _ in self.everything()}
            head, close = (
                "",
                difflib.get_close_matches(text.rpartition(".")[2], sorted(segments), n=3, cutoff=0.6),
            )
        near = [f"{head}.{name}" if head else name for name in close]
        return UnknownPath(f"no module {text!r}", "" if near else "`tree` shows the paths", suggestions=near)


def why_one_call(path: str) -> str:
    """Why nothing inside a TorchScript module has a path."""
    return f"{path} is a TorchScript module and runs as one call"


def _ambiguous(text: str, paths: list[str]) -> UnknownPath:
    shown = ", ".join(paths[:4]) + (", …" if len(paths) > 4 else "")
    hint = f"{shown}; all of them: **.{text}"
    return UnknownPath(f"{text!r} is the end of {len(paths)} paths", hint)
