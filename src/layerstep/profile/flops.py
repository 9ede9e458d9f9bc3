"""Floating-point operations of a call, by torch's own formulas, counted in a rerun that leaves no trace.

The rerun uses aliases of the parameters, so no hook of the program on a parameter runs, and
no gradient is added to.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from layerstep._torch import function_modes_on, is_in_backward, is_transforming
from layerstep._torch.operators import is_composite, packet_of, schema_of
from layerstep._torch.process_state import parametrizations_kept
from layerstep.calls.operations import Kernels
from layerstep.errors import UserError, first_line
from layerstep.hooks.temporary import watching_outputs
from layerstep.memory.places import OpOwners
from layerstep.profile import flop_formulas
from layerstep.rerun.copies import Copies
from layerstep.rerun.kv_caches import Caches, CallProgress
from layerstep.rerun.module_call import leaving_no_trace, length_of
from layerstep.tensors.autograd_graph import inner_tensors, nodes_behind
from layerstep.tensors.clones import is_freed
from layerstep.tensors.containers import with_attributes
from layerstep.tensors.observing import observing

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
_HEAVY_WORDS = ("attention", "rnn", "lstm", "gru", "linalg", "cdist", "encoder_layer")
"""These compute, even if they also move or draw numbers, as attention with dropout does."""


@dataclass(slots=True)
class Flops:
    """The counts of one call, by the path of the module whose own code computes."""

    forward: Counter[str] = field(default_factory=Counter)
    backward: Counter[str] = field(default_factory=Counter)
    uncounted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Operations without a formula that do not work element by element, by path and name."""
    has_backward: bool = False

    @property
    def total(self) -> int:
        return self.forward.total() + self.backward.total()


class _Counter:
    """Counts each kernel for the module whose code called it."""

    def __init__(self, places: OpOwners, found: Flops) -> None:
        self._places = places
        self._found = found
        self._cheap: dict[Any, bool] = {}
        self._parts: dict[Any, bool] = {}
        self.mode = Kernels(self._around)

    def _around(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        packet = packet_of(func)
        if packet is None:  # a higher-order operator: it calls the kernels inside
            return func(*args, **kwargs)
        if self._has_parts(func, packet):
            with self.mode:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        self._count(packet, args, kwargs, result)
        return result

    def _count(self, packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if self._is_cheap(packet):
            if not is_in_backward():
                self._places.here(sys._getframe(1))  # it may have made nodes
            return
        path, part = self._places.here(sys._getframe(1))
        count = flop_formulas.count(packet, args, kwargs, result)
        if count is None:
            self._found.uncounted[path, str(packet).removeprefix("aten.")] += 1
        else:
            (self._found.backward if part == "backward" else self._found.forward)[path] += count

    def _has_parts(self, func: Any, packet: Any) -> bool:
        """Does torch compute it by other operations? With inference tensors a mode does not see those."""
        known = self._parts.get(func)
        if known is None:
            has_formula = packet in flop_registry or packet in flop_formulas.FORMULAS
            known = self._parts[func] = not has_formula and is_composite(func)
        return known

    def _is_cheap(self, packet: Any) -> bool:
        known = self._cheap.get(packet)
        if known is None:
            has_formula = packet in flop_registry or packet in flop_formulas.FORMULAS
            known = self._cheap[packet] = not has_formula and _is_cheap(packet)
        return known


def _is_cheap(packet: Any) -> bool:
    overload = getattr(packet, packet.overloads()[0], None) if hasattr(packet, "overloads") else None
    if overload is None:
        return False
    tags = {str(tag).rpartition(".")[2] for tag in overload.tags}
    is_heavy = any(word in str(packet) for word in _HEAVY_WORDS)
    if not is_heavy and (tags & set(_CHEAP_TAGS) or any(word in str(packet) for word in _CHEAP_WORDS)):
        return True
    returns = schema_of(overload).returns
    return bool(returns) and all(each.alias_info is not None for each in returns)


def count_flops(
    session: Session,
    module: nn.Module,
    *,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    backward: bool,
    seen: Callable[[nn.Module, Any], None] | None = None,
) -> Flops:
    """Rerun a call on copies, forward and, if wanted, backward, and count.

    `seen` is called with each module that returns, and its output.
    """
    path = session.run.models.path_of(module)
    if any(map(is_freed, (*module.parameters(), *module.buffers()))):
        raise UserError(f"{path} cannot be rerun: not all of its weights are in memory at this stop")
    if is_transforming():
        why = "it cannot be rerun in a transform of torch.func"
        raise UserError(f"the FLOP of {path} cannot be counted here: {why}", "stop at the module outside it")
    found = Flops()
    places = OpOwners(session.run.models)
    with contextlib.ExitStack() as stack:
        stack.enter_context(leaving_no_trace(session, module))
        stack.enter_context(parametrizations_kept(empty=True))
        stack.enter_context(
            torch.inference_mode(False)
        )  # before the copies: they must be able to have gradients
        with observing():
            copies = Copies(CallProgress.DURING, length_of(args, kwargs), session.instruments.get(Caches))
            args, kwargs = copies.of(args), copies.of(kwargs)
        stack.enter_context(torch.set_grad_enabled(backward))
        given = [after.requires_grad_() for before, after in copies.tensors() if before.requires_grad]
        both = _BothWays(module, given, found)
        aliases = {name: _alias_of(weight) for name, weight in both.named_parameters()}
        both.leaves += aliases.values()
        watched = watching_outputs(seen) if seen is not None else contextlib.nullcontext()
        try:
            with watched, function_modes_on(), _Counter(places, found).mode:
                torch.func.functional_call(both, aliases, args, kwargs)
        except UserError:
            raise
        except Exception as error:  # the module's own code, on inputs that may have changed since
            line = first_line(error)
            raise UserError(f"{path} cannot be rerun: {line}") from None
    return found


def _alias_of(weight: Tensor) -> Tensor:
    """Its memory in a tensor of ours; one that was made in inference mode can have no gradient."""
    return weight.detach().requires_grad_(weight.requires_grad and not weight.is_inference())


class _BothWays(nn.Module):
    """A forward and its backward in one call, so that checkpoints recompute with the aliases too.

    `functional_call` does not take a `DataParallel`, but it takes a module with one inside.
    """

    def __init__(self, module: nn.Module, leaves: list[Tensor], found: Flops) -> None:
        super().__init__()
        self.module = module
        self.leaves = leaves
        """All tensors that the backward pass may leave a gradient on."""
        self._found = found

    def forward(self, *args: Any, **kwargs: Any) -> None:
        output = self.module(*args, **kwargs)
        ends = [tensor for tensor in inner_tensors(with_attributes(output)) if tensor.requires_grad]
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
        """A reentrant checkpoint refuses `grad`. `backward` leaves gradients, so all leaves must be ours."""
        ours = set(map(id, self.leaves))
        if any(id(node.variable) not in ours for node in nodes if hasattr(node, "variable")):
            raise UserError(
                "a backward pass here would leave gradients on tensors outside the model",
                "count with gradients off, under torch.no_grad()",
            )
        torch.autograd.backward(ends, ones)
