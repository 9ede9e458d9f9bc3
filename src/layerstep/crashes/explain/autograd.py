"""Backward passes that cannot be made: in-place writes, freed graphs, no graph, no scalar."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from layerstep._torch.tensors import is_tensor
from layerstep.crashes.explain.explanation import Explanation, says
from layerstep.crashes.explain.facts import Facts, sizes
from layerstep.crashes.inplace_writes import Write
from layerstep.tensors.shapes import dtype_name, shape_line

__all__: list[str] = []

_KINDS = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
}


@says(
    r"modified by an inplace operation: \[torch\.(?:cuda\.)?(\w+)Tensor \[([\d, ]*)\]\]"
    r"(?:, which is output (\d+) of (\w+),)? is at version (\d+); expected version (\d+)"
)
def _in_place(facts: Facts, found: re.Match[str]) -> Explanation:
    kind, shape, number, made_by, version, expected = found.groups()
    dtype = _KINDS.get(kind, kind.lower())
    short = dtype_name(getattr(torch, dtype)) if kind in _KINDS else dtype
    maker = f", output {number} of {made_by}," if made_by else ""
    times = int(version) - int(expected)
    cause = (
        f"backward needs {short}[{shape}]{maker} as it was at version {expected}; it is at version "
        f"{version}: "
        f"written in place {'once' if times == 1 else f'{times} times'} since"
    )
    saved = tuple(int(size) for size in re.findall(r"\d+", shape))
    writes = _writes(facts.writes, saved, dtype, int(expected), int(version))
    if writes:
        last = writes[0]
        return Explanation(
            f"{cause}, by {last.op} at {last.place}",
            f"out of place there: {_out_of_place(last.op)}, or write to a clone()",
            tuple(f"written by {write.op} at {write.place}" for write in writes),
        )
    return Explanation(
        cause,
        "write out of place (x = x + y for x += y or add_, inplace=False), or to a clone(); "
        "`catch exception` before the run notes the writes and names the line",
    )


def _writes(
    writes: Sequence[Write], shape: tuple[int, ...], dtype: str, expected: int, version: int
) -> list[Write]:
    """The writes that took a tensor of this shape from one version to the other, the newest tensor's."""
    fitting = [write for write in writes if shape in write.shapes and write.dtype == dtype]
    for last in reversed(fitting):
        if last.version == version:
            own = [write for write in fitting if write.storage == last.storage and write.version > expected]
            by_version = {write.version: write for write in own if write.version <= version}
            return [by_version[number] for number in sorted(by_version)]
    return []


def _out_of_place(op: str) -> str:
    name = op.rpartition(".")[2]
    signs = {
        "__iadd__": "x = x + y",
        "__isub__": "x = x - y",
        "__imul__": "x = x * y",
        "__itruediv__": "x = x / y",
    }
    if name in signs:
        return signs[name]
    if name == "__setitem__":
        return "torch.where or torch.cat for what is assigned"
    return f"{name.rstrip('_')}(…)" if name.endswith("_") else "inplace=False"


@says(r"Trying to backward through the graph a second time")
def _second(facts: Facts, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"{facts.subject}: a second time through a graph whose saved tensors the first backward has freed",
        "one backward of the sum of the losses; detach() what is kept from the step before "
        "(a hidden state, a running loss); retain_graph=True only if the same graph is wanted twice",
    )


@says(r"element (\d+) of tensors does not require grad and does not have a grad_fn")
def _no_graph(facts: Facts, found: re.Match[str]) -> Explanation:
    loss = facts.inner.get("self")
    what = shape_line(loss) if is_tensor(loss) else "the loss"
    return Explanation(
        f"{facts.subject}: {what} does not require grad: there is no graph behind it to go back through",
        "look for torch.no_grad(), detach(), .item(), .data or numpy on its way, "
        "or for weights with requires_grad off; `catch nograd` finds the layer",
    )


@says(r"grad can be implicitly created only for (?:scalar|real scalar) outputs")
def _no_scalar(facts: Facts, found: re.Match[str]) -> Explanation:
    loss = facts.inner.get("self")
    loss = loss if is_tensor(loss) else next((each.value for each in facts.tensors), None)
    return Explanation(
        f"{facts.subject}: the loss is {sizes(loss)}, no scalar, so there is no gradient to begin with",
        ".mean() or .sum() of it, or backward(gradient=…) of its shape; a loss with reduction='none'?",
    )


@says(r"a (?:view of a )?leaf Variable that requires grad is being used in an in-place operation")
def _leaf(facts: Facts, found: re.Match[str]) -> Explanation:
    target = facts.operands[0] if facts.operands else None
    name = f"{target.name} {shape_line(target.value)}" if target is not None else "it"
    return Explanation(
        f"{facts.text or facts.line}: {name} is a leaf that requires grad, and {facts.op or 'this'} "
        f"writes to it in place",
        "with torch.no_grad(): around it, to change a weight; or out of place, if the graph should know",
    )


@says(
    r"[Ff]unction (\w+) returned an invalid gradient at index (\d+) - got (\[.*?\]|\S+) but expected "
    r"(?:shape compatible with|type) (\[.*?\]|\S+)"
)
def _wrong_gradient(facts: Facts, found: re.Match[str]) -> Explanation:
    name, number, got, wanted = found.groups()
    return Explanation(
        f"{name} gave a gradient of {got} for its input {number}, which is {wanted}",
        f"in the backward of {name.removesuffix('Backward')}: the gradient has the shape of the input",
    )


@says(r"[Ff]unction (\w+) returned an incorrect number of gradients \(expected (\d+), got (\d+)\)")
def _number_of_gradients(facts: Facts, found: re.Match[str]) -> Explanation:
    name, wanted, got = found.groups()
    return Explanation(
        f"{name} gave {got} gradients, its forward has {wanted} inputs",
        "one for each input, None for what needs none",
    )


@says(r"Can't call numpy\(\) on Tensor that requires grad")
def _numpy(facts: Facts, found: re.Match[str]) -> Explanation:
    target = next((each for each in facts.tensors), None)
    name = f"{target.name} is {shape_line(target.value)} and" if target is not None else "the tensor"
    return Explanation(
        f"{facts.subject}: {name} requires grad, which numpy knows nothing of",
        ".detach().numpy(), .detach().cpu().numpy() from a GPU",
    )


@says(r"can't convert (\S+) device type tensor to numpy", r"Got unsupported ScalarType BFloat16")
def _numpy_elsewhere(facts: Facts, found: re.Match[str]) -> Explanation:
    return Explanation(
        f"{facts.subject}: numpy holds neither tensors of other devices nor bfloat16",
        ".detach().float().cpu().numpy()",
    )
