"""Find where a gradient that is not finite was born: in the loss, as its backward ran, or in a second run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from layerstep._torch import function_modes_on, run_backward
from layerstep.calls.operations import Place
from layerstep.errors import first_line
from layerstep.nonfinite.bad_nodes import BadNode, Ledger, Nodes, nodes_between
from layerstep.nonfinite.kernel_trace import Replayed
from layerstep.nonfinite.origin import Origin, Part
from layerstep.process.frames import OURS
from layerstep.rerun.whole_call import CallStart, rerunning
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.finite import Bad, count_bad, is_finite

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["NOT_REPRODUCIBLE", "Passed", "again_backward", "origin_of_node"]

MOST_NODES = 1_000_000
NOT_REPRODUCIBLE = "the second run was finite: it is not reproducible"


@dataclass(slots=True, eq=False)
class Passed:
    """A forward whose backward is awaited: its beginning, its outputs, the gradients that have arrived."""

    snapshot: CallStart
    outputs: set[int]
    """The numbers of the nodes that made its outputs: to hold a node would keep all activations alive."""
    handles: list[Any] = field(default_factory=list)
    gradients: dict[int, Tensor] = field(default_factory=dict)
    """By the place of the output."""
    is_bad: bool = False
    """One of them is not finite: it was born above the model."""

    def let_go(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


def again_backward(session: Session, passed: Passed, *, watching: list[Nodes]) -> tuple[Nodes, Ledger, str]:
    """Run the forward and its backward again, watched; the nodes, the ledger, and what was in the way.

    `watching` is where who wants to see graphs inside the graph is looked for.
    """
    nodes, ledger = Nodes(check=True), Ledger()
    watching.append(nodes)
    try:
        with (
            rerunning(session, passed.snapshot),
            function_modes_on(),
            Replayed(ledger.around),
            torch.autograd.set_detect_anomaly(True, check_nan=False),  # nodes then know their lines
        ):
            return nodes, ledger, _run(passed, nodes)
    except Exception as error:  # the model's own code; the run must not notice
        line = first_line(error)
        return nodes, ledger, f"the backward cannot be run again: {type(error).__name__}: {line}"
    finally:
        watching.remove(nodes)
        nodes.let_go()


def _run(passed: Passed, nodes: Nodes) -> str:
    """Leaves of our own stand for the parameters: nothing is added to a gradient, no hook is called."""
    module = passed.snapshot.module
    args, kwargs = passed.snapshot.arguments()
    leaves = {
        name: each.detach().requires_grad_(each.requires_grad) for name, each in module.named_parameters()
    }
    outputs = tensors_of(functional_call(module, leaves, args, kwargs))
    pairs = [(outputs[place], gradient) for place, gradient in passed.gradients.items()]
    nodes.watch(nodes_between((tensor.grad_fn for tensor, _ in pairs), (), most=MOST_NODES) or ())
    run_backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
    if all(leaf.grad is None or is_finite(leaf.grad) for leaf in leaves.values()):
        return NOT_REPRODUCIBLE
    return ""


def origin_of_node(session: Session, blamed: BadNode, ledger: Ledger, *, seen: str, forward: int) -> Origin:
    """The node as an origin: the function and line that made it, its operands and its gradients."""
    entry = ledger.entry_of(blamed.number)
    module: nn.Module | None = entry.module if entry is not None else None
    bad = next((count_bad(blamed.grad_in[place]) for place in blamed.bad_edges), Bad())
    wrong = next((f"{name} has {b}" for name, each in blamed.saved if (b := count_bad(each)).any), "")
    grads = [(f"grad_out[{n}]", each) for n, each in enumerate(blamed.grad_out) if each is not None]
    return Origin(
        Part.BACKWARD,
        seen,
        forward=forward,
        op=f"the derivative of {entry.name if entry is not None else _function_of(blamed.name)}",
        detail=blamed.name,
        place=entry.place if entry is not None else _last_place(blamed.traceback),
        path=session.run.models.path_of(module) if module is not None else "",
        kind=type(module).__name__ if module is not None else "",
        bad=bad,
        operands=(*blamed.saved, *grads),
        note=f"{wrong} in the forward already; `catch nonfinite forward` finds where" if wrong else "",
        results=tuple((f"grad_in[{n}]", each) for n, each in enumerate(blamed.grad_in) if each is not None),
    )


def _function_of(node: str) -> str:
    """`sqrt` for SqrtBackward0."""
    return re.sub(r"Backward\d*$", "", node).lower()


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def _last_place(traceback: tuple[str, ...]) -> Place:
    """The innermost line of a stored traceback that is the user's."""
    library = torch.__file__.rpartition("__init__")[0]
    for text in reversed(traceback):
        match = _FRAME.search(text)
        if match is not None and not match["file"].startswith((library, OURS)):
            return Place(match["file"], int(match["line"]), match["function"])
    return Place()
