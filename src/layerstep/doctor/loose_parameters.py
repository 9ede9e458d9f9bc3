"""Parameters that are at work and that no model knows: in a plain list of a module, or in variables.

The graph of a loss ends at every leaf that gets a gradient. One that no model has among its parameters is
looked for in the attributes of the modules, then in the variables of the program: a model may be a function
of tensors.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from layerstep._torch.graphs import variable_of
from layerstep._torch.tensors import is_tensor
from layerstep.process.frames import forget_locals, is_program_file, program_frames

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["LooseParameters"]

TIMES = 3
"""Losses whose whole graph is walked through: 1 ms for a thousand nodes."""
MOST_NODES = 50_000
DEPTH = 3
LONG = 1000
"""A container with more parts holds data."""


class LooseParameters:
    """Looks for them in the first losses."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._left = TIMES
        self._found: dict[str, weakref.ref[Tensor]] = {}
        self._variables: dict[str, weakref.ref[Tensor]] = {}

    def named(self) -> list[tuple[str, Tensor]]:
        """Those that are alive, by the attribute that holds them."""
        return _alive(self._found)

    def variables(self) -> list[tuple[str, Tensor]]:
        """Those that no module holds, by the variable that does."""
        return _alive(self._variables)

    def look(self, loss: Tensor, parameters: Iterable[Tensor], frame: FrameType) -> None:
        """A backward pass is about to begin at this loss; the models know of these parameters."""
        if not self._left:
            return
        self._left -= 1
        known = set(map(id, parameters))
        strange = {id(leaf) for leaf in _leaves(loss.grad_fn) if id(leaf) not in known}
        if not strange:
            return
        for path, module in self._session.run.models.everything():
            for key, value in vars(module).items():
                if not key.startswith("_"):
                    name = f"{path}.{key}" if path else key
                    found = (each for each in _in(name, value, DEPTH) if id(each[1]) in strange)
                    self._found.update({own: weakref.ref(p) for own, p in found})
        self._look_at_variables(strange - {id(p) for _, p in self.named()}, frame)

    def _look_at_variables(self, strange: set[int], frame: FrameType) -> None:
        """A tensor with a variable of its own has that name, even if a list holds it too."""
        for each in program_frames(frame) if strange else ():
            scopes = [list(scope.items()) for scope in (each.f_locals, each.f_globals)]
            for depth, scope in itertools.product((0, DEPTH), scopes):
                for key, value in scope:
                    found = [(own, p) for own, p in _in(key, value, depth) if id(p) in strange]
                    self._variables.update({own: weakref.ref(p) for own, p in found})
                    strange -= {id(p) for _, p in found}
            forget_locals(each)


def _alive(found: dict[str, weakref.ref[Tensor]]) -> list[tuple[str, Tensor]]:
    return [(name, p) for name, reference in found.items() if (p := reference()) is not None]


def _leaves(top: Any) -> Iterator[Tensor]:
    waiting, seen = [top], dict[Any, None]()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen[node] = None
        leaf = variable_of(node)
        if leaf is not None:
            yield leaf
        waiting += [below for below, _ in node.next_functions]


def _in(name: str, value: Any, depth: int) -> Iterator[tuple[str, Tensor]]:
    """The tensors and the parameters of modules in a value, by name."""
    if is_tensor(value):
        yield name, value
    elif depth and isinstance(value, nn.Module):
        yield from ((f"{name}.{own}", p) for own, p in value.named_parameters())
    elif depth and type(value) in (dict, list, tuple) and len(value) > LONG:
        return
    elif depth and isinstance(value, Mapping):
        for key, each in value.items():
            yield from _in(f"{name}.{key}", each, depth - 1)
    elif depth and type(value) in (list, tuple):
        for place, each in enumerate(value):
            yield from _in(f"{name}.{place}", each, depth - 1)
    elif depth and _is_of_program(value):
        for key, each in vars(value).items():
            yield from _in(f"{name}.{key}", each, depth - 1)


def _is_of_program(value: Any) -> bool:
    """Is it an object of a class of the program itself? Those of libraries may answer to any question."""
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    is_own = file is not None and is_program_file(file)
    return is_own and hasattr(value, "__dict__") and not isinstance(value, type)
