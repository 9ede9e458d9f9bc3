"""The architecture of a model in numbers: its parts, where its parameters and FLOPs are, and what is odd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from layerstep._torch import is_scripted
from layerstep.layers.initialisation import judge
from layerstep.layers.weights import Weight, collect, measure_all
from layerstep.module_paths.models import Models
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.kinds import bytes_of
from layerstep.tensors.shapes import attempt, shape_of

__all__ = ["Architecture", "Block", "Forward", "describe"]

MOST_MEASURED = 2_500
"""Parameters whose values are read, evenly spread over all."""
MOST_OPENED = 4
"""How many levels a block is looked into because it holds most of the model."""
LARGE = 0.5
"""A block with more than this share of the parameters is shown by its parts."""


@dataclass(slots=True)
class Forward:
    """One forward: which modules it called, what came out of them, and the FLOPs that it took."""

    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By the id of each module that was called; the first tensor of its first output."""
    flops: Counter[str] | None = None
    """By path, of each module's own code."""

    def note(self, module: nn.Module, output: Any) -> None:
        """A module has returned."""
        if id(module) not in self.shapes:
            made = next(iter(tensors_of(output, 1)), None)
            self.shapes[id(module)] = attempt(lambda: shape_of(made), ()) if made is not None else ()


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a model, or several equal ones in a row."""

    path: str
    kind: str
    parameters: int
    flops: int = 0
    shape: tuple[int, ...] | None = None
    """What came out of it; None if it was not called."""
    last: str = ""
    """The path of the last of several."""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a model is made of."""

    name: str
    modules: int
    leaves: int
    depth: int
    """Levels of modules in modules."""
    parameters: int
    trainable: int
    bytes: int
    buffer_bytes: int
    tied: int
    """Parameters that have several names."""
    lazy: int
    """Parameters that have no size yet."""
    kinds: Mapping[str, int]
    """How many leaves of each class."""
    dtypes: Mapping[str, int]
    devices: Mapping[str, int]
    blocks: tuple[Block, ...]
    flops: int | None
    """Of one forward and its backward; None if it was not counted."""
    uncalled: tuple[str, ...] | None
    """Modules that the forward did not call; None if no forward was seen."""
    removed_biases: tuple[tuple[str, str], ...] = ()
    """Biases that a norm removes, with the path of the norm."""
    odd_weights: tuple[tuple[str, str], ...] = ()
    """Parameters whose values are a fault in most models, with the reason."""


def describe(
    models: Models,
    inside: str = "",
    *,
    forward: Forward | None = None,
    removed_biases: Mapping[int, str] | None = None,
) -> Architecture:
    """The architecture of all models, or of the module at a path and all below it."""
    place = _Place.of(models, inside)
    named = place.named
    every = collect(named.items())
    weights = [each for each in every if not _is_lazy(each)]
    norms = removed_biases or {}
    leaves = {id(module): module for module in named.values() if not module._modules}
    blocks = tuple(_folded(_blocks(place, weights, forward)))
    return Architecture(
        name=", ".join(place.roots),
        modules=len({id(module) for module in named.values()}),
        leaves=len(leaves),
        depth=max((len(place.upwards(path)) for path in named), default=0),
        parameters=sum(weight.size for weight in weights),
        trainable=sum(weight.size for weight in weights if weight.tensor.requires_grad),
        bytes=sum(weight.nbytes for weight in weights),
        buffer_bytes=_buffer_bytes(named.values()),
        tied=sum(len(weight.names) > 1 for weight in weights),
        lazy=len(every) - len(weights),
        kinds=Counter(type(module).__name__ for module in leaves.values()),
        dtypes=Counter(weight.dtype for weight in weights),
        devices=Counter(str(weight.tensor.device) for weight in weights),
        blocks=blocks,
        flops=sum(each.count * each.flops for each in blocks) if forward and forward.flops else None,
        uncalled=tuple(_uncalled(place, forward)) if forward is not None else None,
        removed_biases=tuple((w.names[0], norms[id(w.tensor)]) for w in weights if id(w.tensor) in norms),
        odd_weights=tuple(_odd(weights)),
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """The modules that are described, by path, and how their paths hang together."""

    roots: dict[str, nn.Module]
    named: dict[str, nn.Module]
    bare: str
    """The name of the one model whose modules have paths without it."""

    @classmethod
    def of(cls, models: Models, inside: str) -> _Place:
        every = dict(models.everything())
        if inside:
            path, module = models.find(inside)
            below = {name: each for name, each in every.items() if f"{name}.".startswith(f"{path}.")}
            bare = path if path in {model.name for model in models} and not models.are_several else ""
            return cls({path: module}, every if bare else below, bare)
        found = [model for model in models if not model.is_helper] or list(models)
        roots = {model.name: root for model in found if (root := model.root) is not None}
        is_bare = len(found) == 1 and not found[0].is_helper
        inner = {path: m for path, m in every.items() if is_bare or path.partition(".")[0] in roots}
        return cls(roots, inner, found[0].name if is_bare else "")

    def below(self, path: str, name: str) -> str:
        """The path of a part of a module."""
        return name if path == self.bare else f"{path}.{name}"

    def around(self, path: str) -> str:
        """The path of the module that a module is a part of; none for a root."""
        return "" if path in self.roots else path.rpartition(".")[0] or self.bare

    def upwards(self, path: str) -> list[str]:
        """A path and those of all modules around it, up to a root."""
        found = []
        while path:
            found.append(path)
            path = self.around(path)
        return found


def _buffer_bytes(modules: Iterable[nn.Module]) -> int:
    buffers = {id(each): each for module in modules for each in module._buffers.values() if each is not None}
    return sum(int(attempt(partial(bytes_of, each, ""), 0)) for each in buffers.values())


def _is_lazy(weight: Weight) -> bool:
    return bool(attempt(lambda: is_lazy(weight.tensor), False))


# --- blocks ---


def _blocks(place: _Place, weights: list[Weight], forward: Forward | None) -> list[Block]:
    """The parts of the roots; a part that holds most of the parameters is shown by its own parts."""
    own: Counter[str] = Counter()
    for weight in weights:
        own[weight.names[0].rpartition(".")[0]] += weight.size
    own_flops: Counter[str] = Counter()
    for path, count in (forward.flops or {}).items() if forward is not None else ():
        own_flops[path.partition("|")[0]] += count
    sizes, flops = _summed(place, own), _summed(place, own_flops)
    whole, shapes = max(1, own.total()), forward.shapes if forward is not None else {}
    found: list[Block] = []

    def show(path: str, module: nn.Module, level: int) -> None:
        children = [] if is_scripted(module) else _children(module)
        if children and (not level or (level < MOST_OPENED and sizes[path] > LARGE * whole)):
            if own[path] or own_flops[path]:
                found.append(Block(path, f"{type(module).__name__} itself", own[path], own_flops[path]))
            for name, child in children:
                show(place.below(path, name), child, level + 1)
        else:
            kind = type(module).__name__
            found.append(Block(path, kind, sizes[path], flops[path], shapes.get(id(module))))

    for path, root in place.roots.items():
        show(path, root, 0)
    return found


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, child) for name, child in module._modules.items() if child is not None]


def _summed(place: _Place, own: Counter[str]) -> Counter[str]:
    """What modules have, with what all below them have."""
    found: Counter[str] = Counter()
    for path, count in own.items():
        for each in place.upwards(path):
            found[each] += count
    return found


def _folded(blocks: list[Block]) -> list[Block]:
    """Equal neighbours as one."""
    found: list[Block] = []
    for block in blocks:
        before = found[-1] if found else None
        if before is not None and _looks(before) == _looks(block):
            found[-1] = replace(before, last=block.path, count=before.count + 1)
        else:
            found.append(block)
    return found


def _looks(block: Block) -> tuple[object, ...]:
    parent = block.path.rpartition(".")[0]
    number = block.path.rpartition(".")[2].isdigit()  # `q` and `k` are not one block, `0` and `1` are
    return parent, number or block.path, block.kind, block.parameters, block.flops, block.shape


# --- what is odd ---


def _uncalled(place: _Place, forward: Forward) -> list[str]:
    """The outermost modules in which nothing was called. A container is called through its parts."""
    called = [path for path, module in place.named.items() if id(module) in forward.shapes]
    touched = {each for path in called for each in place.upwards(path)}
    found: list[str] = []
    for path, module in place.named.items():
        around = place.around(path)
        is_outermost = around in touched and path not in touched
        if is_outermost and not _is_used_otherwise(module, place.named.get(around)):
            found.append(path)
    return found


def _is_used_otherwise(module: nn.Module, around: nn.Module | None) -> bool:
    """Does it need no call? Empty containers, parametrizations, layers whose weights another module reads."""
    if type(module).forward is nn.Module.forward and next(module.parameters(), None) is None:
        return True
    if isinstance(around, nn.MultiheadAttention) or "parametriz" in type(module).__module__:
        return True
    return any(parameter.grad is not None for parameter in module.parameters())


def _odd(weights: list[Weight]) -> list[tuple[str, str]]:
    looked = weights[:: max(1, -(-len(weights) // MOST_MEASURED))]
    measure_all(looked)
    judged = ((weight.names[0], judge(weight)) for weight in looked)
    return [(name, match.words) for name, match in judged if match.is_fault]
