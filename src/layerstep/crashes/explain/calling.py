"""Modules called the wrong way: arguments, no forward, containers, a tuple where a tensor is wanted."""

from __future__ import annotations

import difflib
import inspect
import re

from torch import nn

from layerstep.crashes.explain.explanation import Explanation, says
from layerstep.crashes.explain.facts import Facts, layer_name
from layerstep.tensors.shapes import shape_line

__all__: list[str] = []


def _signature(facts: Facts) -> str:
    module = facts.module
    if module is None:
        return ""
    try:
        parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return ""
    return (
        f"forward({', '.join(str(each).partition(':')[0].partition('=')[0].strip() for each in parameters)})"
    )


def _given(facts: Facts) -> str:
    values = [shape_line(value) for value in facts.args]
    values += [f"{name}={shape_line(value)}" for name, value in facts.kwargs.items()]
    return f"({', '.join(values)})"


@says(r"(\w+)\.forward\(\) missing (\d+) required (?:positional|keyword-only) arguments?: (.*)")
def _missing(facts: Facts, found: re.Match[str]) -> Explanation:
    kind, _, names = found.groups()
    return Explanation(
        f"forward() of {kind} got {_given(facts)}: {names} is missing",
        f"it is {_signature(facts)}; in a Sequential a layer gets one input only",
    )


@says(r"(\w+)\.forward\(\) got (?:an unexpected keyword argument|multiple values for argument) '(\w+)'")
def _keyword(facts: Facts, found: re.Match[str]) -> Explanation:
    kind, name = found.groups()
    word = "twice" if "multiple" in found[0] else "an unexpected keyword"
    return Explanation(
        f"forward() of {kind} got {_given(facts)}: {name!r} is {word}", f"it is {_signature(facts)}"
    )


@says(r"(\w+)\.forward\(\) takes (?:from \d+ to )?(\d+) positional arguments? but (\d+) (?:was|were) given")
def _too_many(facts: Facts, found: re.Match[str]) -> Explanation:
    kind, most, given = found[1], int(found[2]) - 1, int(found[3]) - 1
    return Explanation(
        f"forward() of {kind} got {_given(facts)}: it takes {most}, {given} were given",
        f"it is {_signature(facts)}",
    )


@says(r'is missing the required "forward" function')
def _no_forward(facts: Facts, found: re.Match[str]) -> Explanation | None:
    module = facts.module
    if module is None:
        return None
    kind = type(module).__name__
    if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict):
        loop = (
            "for layer in layers.values(): x = layer(x)"
            if "Dict" in kind
            else "for layer in layers: x = layer(x)"
        )
        return Explanation(
            f"{kind} of {len(module)} was called: it is a container and has no forward",
            f"{loop}; or nn.Sequential",
        )
    near = difflib.get_close_matches(
        "forward", [n for n in dir(type(module)) if n not in dir(nn.Module)], n=1
    )
    spelled = f"; is {near[0]!r} meant to be it?" if near else ""
    return Explanation(
        f"{kind} has no forward{spelled}", "def forward(self, x): …, indented as a method of the class"
    )


@says(r"argument '(\w+)' (?:\(position \d+\) )?must be Tensor, not (\w+)")
def _no_tensor(facts: Facts, found: re.Match[str]) -> Explanation:
    name, kind = found.groups()
    value = next((value for key, value in facts.given() if key == name), None)
    got = shape_line(value) if value is not None else f"a {kind}"
    cause = f"{facts.subject} got {name}={got}: a {kind} where a tensor is wanted"
    before = _before(facts)
    if kind == "tuple" and before is not None:
        where = f" in a {type(facts.parent).__name__}" if facts.parent is not None else ""
        cause += f"; {layer_name(before)} before it{where} returns a tuple"
        if isinstance(before, nn.RNNBase):
            return Explanation(cause, "out, state = lstm(x): hand on `out`, in a module of your own")
        return Explanation(cause, "hand on its first part, in a module of your own")
    if kind == "NoneType":
        return Explanation(cause, "who made it has no return, or an optional input was left out")
    return Explanation(cause, f"take the tensor out of the {kind}")


def _before(facts: Facts) -> nn.Module | None:
    """The layer before this one in a Sequential."""
    if not isinstance(facts.parent, nn.Sequential) or facts.module is None:
        return None
    layers = list(facts.parent)
    place = next((i for i, layer in enumerate(layers) if layer is facts.module), 0)
    return layers[place - 1] if place else None


@says(r"'(\w+)' object has no attribute '(\w+)'")
def _attribute(facts: Facts, found: re.Match[str]) -> Explanation | None:
    kind, name = found.groups()
    module = facts.module
    if module is None or type(module).__name__ != kind:
        return None
    if not hasattr(module, "_modules"):
        return Explanation(
            f"{kind} was made without nn.Module's own __init__", "super().__init__() in its __init__"
        )
    own = [*module._modules, *module._parameters, *module._buffers, *vars(module), *dir(type(module))]
    near = difflib.get_close_matches(name, [each for each in own if not each.startswith("_")], n=2)
    fix = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"self.{name} = … in __init__, after super().__init__()"
    )
    return Explanation(f"{facts.text or facts.subject}: {kind} has no attribute {name!r}", fix)


@says(r"cannot assign .* before Module\.__init__\(\) call")
def _no_init(facts: Facts, found: re.Match[str]) -> Explanation:
    return Explanation(f"{facts.line}: {found[0]}", "super().__init__() first, in __init__")
