"""Floating-point operations of a call, by torch's own formulas, in a second run that leaves no trace.

Parameters take part as aliases that are nobody else's, so no hook of the program on a parameter runs, and
no gradient is added to.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from layerstep.engine._torch import functions_on
from layerstep.engine._torch.traces import parametrizations_kept
from layerstep.engine.copies import Copies, Moment, is_freed
from layerstep.engine.guard import observing
from layerstep.engine.memory.graph import inner_tensors, nodes_behind
from layerstep.engine.memory.places import Places
from layerstep.engine.rerun import leaving_no_trace, length_of
from layerstep.errors import UserError

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Flops", "count_flops"]

_CHEAP_TAGS = ("pointwise", "inplace_view", "view_copy", "nondeterministic_seeded", "reduction")
_CHEAP_WORDS = (
    *("empty", "zeros", "ones", "full", "arange", "scalar_tensor", "copy", "clone", "detach", "fill"),
    *(
        "cat",
        "stack",
        "alias",
        "lift",
        "select",
        "slice",
        "bernoulli",
        "rand",
        "new_",
        "local_scalar",
        "tril",
    ),
    *(
        "triu",
        "eye",
        "linspace",
        "index",
        "_foreach_",
        "_unsafe_view",
        "embedding",
        "gather",
        "scatter",
        "pad",
    ),
)
"""Operations that only make, move or draw numbers."""


@dataclass(slots=True)
class Flops:
    """The counts of one call: a path has what its own code does, without the modules inside."""

    forward: Counter[str] = field(default_factory=Counter)
    backward: Counter[str] = field(default_factory=Counter)
    uncounted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By path and name, operations that torch has no formula for, which are not element by element."""
    has_backward: bool = False

    @property
    def total(self) -> int:
        return self.forward.total() + self.backward.total()


class _Nowhere:
    """In place of torch's tracker of modules, whose global hooks would be seen by the program's calls."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class _Counter(FlopCounterMode):
    """Torch's counter, with the places of this house."""

    def __init__(self, places: Places, found: Flops) -> None:
        super().__init__(display=False)
        self.mod_tracker = _Nowhere()  # type: ignore[assignment]
        self._places = places
        self._found = found

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        path, part = self._places.here(sys._getframe(1))
        formula: Any = self.flop_registry.get(func_packet)
        if formula is not None:
            count = formula(*args, **kwargs, out_val=out)
            (self._found.backward if part == "backward" else self._found.forward)[path] += int(count)
        elif not _is_cheap(func_packet):
            self._found.uncounted[path, str(func_packet).removeprefix("aten.")] += 1
        return super()._count_flops(func_packet, out, args, kwargs)  # type: ignore[no-untyped-call]


def _is_cheap(packet: Any) -> bool:
    overload = getattr(packet, packet.overloads()[0], None) if hasattr(packet, "overloads") else None
    if overload is None:
        return False
    tags = {str(tag).rpartition(".")[2] for tag in overload.tags}
    if tags & set(_CHEAP_TAGS) or any(word in str(packet) for word in _CHEAP_WORDS):
        return True
    returns = overload._schema.returns
    return bool(returns) and all(each.alias_info is not None for each in returns)


def count_flops(
    session: Session, module: nn.Module, *, args: tuple[Any, ...], kwargs: dict[str, Any], backward: bool
) -> Flops:
    """Run a call again on copies, forward and, if wanted, backward, and count."""
    path = session.models.path_of(module)
    if any(map(is_freed, (*module.parameters(), *module.buffers()))):
        raise UserError(f"{path} cannot be run again: not all of its weights are in memory at this stop")
    found = Flops()
    places = Places(session.models)
    with contextlib.ExitStack() as stack:
        stack.enter_context(leaving_no_trace(session, module))
        stack.enter_context(parametrizations_kept(empty=True))
        with observing():
            copies = Copies(Moment.DURING, length_of(args, kwargs))
            args, kwargs = copies.of(args), copies.of(kwargs)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.set_grad_enabled(backward))
        given = [after.requires_grad_() for before, after in copies.tensors() if before.requires_grad]
        both = _BothWays(module, given, found)
        aliases = {n: p.detach().requires_grad_(p.requires_grad) for n, p in both.named_parameters()}
        both.leaves += aliases.values()
        try:
            with functions_on(), _Counter(places, found):
                torch.func.functional_call(both, aliases, args, kwargs)
        except UserError:
            raise
        except Exception as error:  # the module's own code, on inputs that may have changed since
            line = str(error).partition("\n")[0]
            raise UserError(f"{path} cannot be run again: {line}") from None
    return found


class _BothWays(nn.Module):
    """A forward and its backward in one call, which has the aliases throughout: checkpoints run again in it.

    `functional_call` takes no `DataParallel`, but a module that has one inside.
    """

    def __init__(self, module: nn.Module, leaves: list[Tensor], found: Flops) -> None:
        super().__init__()
        self.module = module
        self.leaves = leaves
        """All tensors that a gradient may be left on."""
        self._found = found

    def forward(self, *args: Any, **kwargs: Any) -> None:
        output = self.module(*args, **kwargs)
        plain = output if isinstance(output, Tensor | tuple | list | dict) else tuple(vars(output).values())
        ends = [tensor for tensor in inner_tensors(plain) if tensor.requires_grad]
        wanted = [tensor for tensor in self.leaves if tensor.requires_grad]
        if not ends or not wanted:
            return
        self._found.has_backward = True
        with observing():
            ones = [torch.ones_like(end) for end in ends]
        nodes, _ = nodes_behind((end.grad_fn for end in ends), most=sys.maxsize)
        if any(node.name().endswith("CheckpointFunctionBackward") for node in nodes):
            self._backward(ends, ones, nodes)
        else:
            torch.autograd.grad(ends, wanted, ones, allow_unused=True)

    def _backward(self, ends: list[Tensor], ones: list[Tensor], nodes: set[Any]) -> None:
        """A reentrant checkpoint refuses `grad`; gradients may then only be left on what is ours."""
        ours = set(map(id, self.leaves))
        if any(id(node.variable) not in ours for node in nodes if hasattr(node, "variable")):
            raise UserError(
                "a backward pass here would leave gradients on tensors outside of the model",
                "count with gradients off, under torch.no_grad()",
            )
        torch.autograd.backward(ends, ones)
