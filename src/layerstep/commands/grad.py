from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from layerstep.arguments import Choice, Expr, Flag, Form, Given, Keyword, Number, Path, Real, Where
from layerstep.commands import grad_faults, grad_steps
from layerstep.engine.session import Session
from layerstep.engine.values import value_of
from layerstep.errors import UserError
from layerstep.gradients.flow import DEFAULT, PRESETS
from layerstep.gradients.log import GradientEntry
from layerstep.gradients.no_gradient import (
    biases_before_norms,
    in_backward,
    missing_gradients,
    outside_optimizers,
)
from layerstep.gradients.recorder import NamedParameter, named_parameters
from layerstep.gradients.sizes import Size, combined, gradient_of, measure, norms
from layerstep.layers.weights import histogram
from layerstep.registry import command
from layerstep.tensors.bars import sparkline
from layerstep.tensors.format import dims, listed, number
from layerstep.tensors.observing import observing
from layerstep.tensors.present import tensor_view
from layerstep.tensors.shapes import tensors_in
from layerstep.tensors.spread import spread
from layerstep.views import Column, Fields, Group, Notice, Span, Table, Text, View

BINS = 32
CELLS = 8
NORM_WORDS = "the norm probably takes this bias away again, so its gradient is about zero by construction"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_PARTS: dict[str, Callable[[Session, Given], View]] = {
    "flow": lambda session, given: _flow(session),
    "record": grad_steps.record,
    "trend": lambda session, given: grad_steps.trend(session, given.path),
    "animate": lambda session, given: grad_steps.animate(session),
    "clip": lambda session, given: grad_steps.clip(session, given.max_norm),
    "none": lambda session, given: grad_faults.none(session),
    "dead": lambda session, given: grad_faults.dead(session, given.where),
    "check": lambda session, given: grad_faults.check(session, given.path),
}


@command(
    "grad",
    group="train",
    args=(
        Expr("X", optional=True, completes="path"),
        Form("flow"),
        Form(
            "record",
            Choice("off", optional=True, name="off"),
            Keyword("every", Number("N", least=1, default=1)),
            Flag("updates"),
        ),
        Form("trend", Path(optional=True)),
        Form("animate"),
        Form("clip", Real("MAX_NORM", optional=True, what="norm")),
        Form("none"),
        Form("dead", Where(optional=True)),
        Form("check", Path(optional=True)),
    ),
    examples=(
        "grad",
        "grad head.weight",
        "grad blocks.0",
        "grad flow",
        "grad record every 10 --updates",
        "grad trend",
        "grad animate",
        "grad clip 1.0",
        "grad none",
        "grad dead type:GELU",
        "grad check",
    ),
)
def grad(session: Session, given: Given) -> View:
    """Show gradients, how they flow and trend, and what is wrong.

    `grad X` shows the gradient of a parameter, or the gradients of a module's parameters. Without X it shows
    those of this stop's module in the backward pass, or all gradients anywhere else. |g|/|w| is the norm of
    the gradient divided by the norm of the parameter.
    `grad flow` shows a row for each layer: the .grad fields as they are now, or the last recorded step if
    they are empty. In the bars, one cell less is a factor of 10. A gradient vanishes if its mean |g| is below
    1e-7, and explodes if its max |g| is above 1e3.
    `grad record` measures all gradients just before every N-th step of an optimizer. With `--updates` it also
    measures how much the step changes each parameter; this holds a copy of the parameters during the step. It
    keeps the last 200 steps.
    `grad trend` shows the norms over the recorded steps. `grad animate` draws them, with a row for each layer
    and a column for each step; `export flow.gif` writes them as an animation, and `export gradients.html` as
    a page with a slider. `grad clip` suggests a bound for clipping: the 90th percentile of the total
    norm.
    `grad none` lists parameters without a gradient, and says why. It also lists those that no optimizer has.
    `grad dead` lists units of ReLUs, or of WHERE, that were always zero. It counts from its first call on.
    `grad check` runs the module of this stop, or the one at PATH, again on copies of its input. It compares
    autograd's gradient with central differences on a sample of elements.
    """
    with observing():
        if given.form:
            return _PARTS[given.form](session, given)
        if not given.x:
            return _here(session)
    rest: str = given.x
    value = _named(session, rest)
    value = value_of(session.prompt, rest) if value is None else value
    with observing():
        if isinstance(value, nn.Module):
            return _of_module(session, value, rest)
        leaves = tensors_in(value, most=1)
        if not leaves:
            raise UserError(f"no tensor in {rest}", f"it is a {type(value).__name__}")
        return _of_tensor(session, leaves[0][1], rest + leaves[0][0])


def _named(session: Session, text: str) -> torch.Tensor | nn.Module | None:
    """A parameter or module by its whole path, which need not be Python: `0.bias`."""
    found = {each.name: each.parameter for each in named_parameters(session)}
    return found.get(text, session.run.models.at(text))


def _here(session: Session) -> View:
    frame = session.run.pause.frame if session.run.pause is not None else None
    if frame is None or frame.call is None or frame.module is None:
        return _table(session, named_parameters(session), "the model")
    lines: list[tuple[str, View]] = []
    for name, values in (("grad_out", frame.call.grad_out), ("grad_in", frame.call.grad_in)):
        for place, value in enumerate(values):
            label = name if len(values) == 1 else f"{name}[{place}]"
            lines += _lines(label, value) if value is not None else [(label, Text("none"))]
    about = Fields((Span(frame.path, "path"), Span(frame.state, "dim")), tuple(lines))
    own = [
        each for each in named_parameters(session) if each.layer in session.run.models.paths_of(frame.module)
    ]
    if not any(each.parameter.grad is not None for each in own):
        return about
    return Group((about, _table(session, own, frame.path)))


def _lines(label: str, gradient: torch.Tensor) -> list[tuple[str, View]]:
    lines: list[tuple[str, View]] = [(label, tensor_view(gradient))]
    found = spread(gradient, bins=BINS)
    if found is not None and len(found.counts) > 1:
        bars = f"{number(found.edges[0])} {sparkline(found.counts)} {number(found.edges[-1])}"
        lines.append(("", Text(bars)))
    return lines


def _of_tensor(session: Session, tensor: torch.Tensor, text: str) -> View:
    gradient = gradient_of(tensor)
    if gradient is None:
        found = {id(each.parameter): each.name for each in named_parameters(session)}
        name = found.get(id(tensor))
        reasons = missing_gradients(session, grad_steps.log_of(session))
        why = next((each.reason for each in reasons if each.name == name), "")
        if not why:
            why = "only a leaf keeps one, or a tensor after retain_grad()" if tensor.requires_grad else ""
        return Notice(f"{text} has no gradient", why or "it takes none")
    (size,), (weight,) = measure([gradient]), norms([tensor])
    lines = _lines("", gradient)
    lines.append(("size", Text(f"mean |g| {_figure(size.mean)}  max |g| {_figure(size.most)}")))
    lines.append(("norm", Text(f"{_figure(size.norm)}, |g|/|w| {_ratio(size.norm, weight)}")))
    flag = _flag(size, biases_before_norms(session).get(id(tensor), ""))
    flag = f"{flag}: {NORM_WORDS}" if flag.startswith("~0") else flag
    return Fields((Span(f"gradient of {text}", "code"),), (*lines, *([("", Text(flag))] if flag else [])))


def _of_module(session: Session, module: nn.Module, text: str) -> View:
    inside = {id(parameter) for parameter in module.parameters()}
    if not inside:
        return Notice(f"{text} has no parameters", "`break PATH backward` shows what passes through it")
    return _table(session, [p for p in named_parameters(session) if id(p.parameter) in inside], text)


def _table(session: Session, found: list[NamedParameter], text: str) -> View:
    have = [each for each in found if each.parameter.grad is not None]
    if not have:
        return Notice(f"no parameter of {text} has a gradient now", "`grad none` says why")
    shown = have[: session.run.config.max_lines]
    sizes = measure([g for each in shown if (g := each.parameter.grad) is not None])
    weights = norms([each.parameter for each in shown])
    before_norm = biases_before_norms(session)
    rows = []
    for each, size, weight in zip(shown, sizes, weights, strict=True):
        gradient = each.parameter.grad
        assert gradient is not None
        bars = sparkline([0.0, *histogram(gradient)])[1:]
        figures = (_figure(size.mean), _figure(size.most), _figure(size.norm), _ratio(size.norm, weight))
        flag = _flag(size, before_norm.get(id(each.parameter), ""))
        rows.append((each.name, dims(tuple(gradient.shape)), *figures, bars, flag))
    columns = (
        Column("parameter", "path"),
        Column("shape", "dim"),
        *(Column(name, right=True) for name in ("mean |g|", "max |g|", "norm", "|g|/|w|")),
        Column("values"),
        Column(""),
    )
    notes = [f"{len(have) - len(shown):,} more; name a part to see them"] if len(have) > len(shown) else []
    if any(row[-1].startswith("~0") for row in rows):
        notes.append(f"~0: {NORM_WORDS}")
    if len(have) < len(found):
        notes.append(f"{len(found) - len(have):,} without a gradient; `grad none` says why")
    return Table(columns, tuple(rows), note="\n".join(notes))


def _flag(size: Size, norm: str = "") -> str:
    """What is wrong with a gradient; a bias that a norm takes away is about 0 as it should be."""
    vanishes, explodes = PRESETS[DEFAULT].judge(*size)
    if not math.isfinite(size.most):
        return "not finite"
    if explodes:
        return "exploding"
    if vanishes:
        return f"~0 before {norm}" if norm else "vanishing" if size.norm else "all zero"
    return ""


def _figure(value: float) -> str:
    return number(value) if math.isfinite(value) else str(value)


def _ratio(part: float, whole: float) -> str:
    return _figure(part / whole) if whole > 0 else "-"


def _flow(session: Session) -> View:
    log = grad_steps.log_of(session)
    every = named_parameters(session)
    before_norm = biases_before_norms(session)  # alone, such a bias would look as if the layer vanished
    have = [p for p in every if p.parameter.grad is not None and id(p.parameter) not in before_norm]
    notes = []
    if have:
        title, entries = "gradients as they are now", _now(have)
        if lacking := sum(each.parameter.requires_grad for each in every if each.parameter.grad is None):
            notes.append(f"{lacking:,} trainable without a gradient; `grad none` says why")
    elif log is not None and len(log):
        step, entries = log.last()
        title = f"training step {step}"
    else:
        return Notice("no gradient yet", "`grad record` now, or look between the backward and zero_grad")
    cut = len(entries) - session.run.config.max_lines
    notes += [f"{cut:,} more layers"] if cut > 0 else []
    notes += ["this backward is not over"] if in_backward(session) else _depth(entries)
    notes += [*grad_steps.warnings_of(session), *_outside(session)]
    shown = dict(list(entries.items())[: session.run.config.max_lines])
    ratios = log.last()[1] if log is not None and log.has_updates else {}
    return replace(_layers(shown, ratios), title=title, note="\n".join(notes))


def _layers(entries: dict[str, GradientEntry], updated: dict[str, GradientEntry]) -> Table:
    largest = max((e.size.norm for e in entries.values() if math.isfinite(e.size.norm)), default=0.0)
    rows = []
    for path, entry in entries.items():
        figures = (_figure(entry.size.mean), _figure(entry.size.most), _figure(entry.size.norm))
        update = [_figure(updated[path].ratio) if path in updated else "-"] if updated else []
        rows.append((path, *figures, *update, _bar(entry.size.norm, largest), _flag(entry.size)))
    names = ("mean |g|", "max |g|", "norm", *(["|Δw|/|w|"] if updated else []))
    numbers = (Column(name, right=True) for name in names)
    return Table((Column("layer", "path"), *numbers, Column(""), Column("")), tuple(rows))


def _now(have: list[NamedParameter]) -> dict[str, GradientEntry]:
    layers: dict[str, list[tuple[Size, int]]] = {}
    sizes = measure([g for each in have if (g := each.parameter.grad) is not None])
    for each, size in zip(have, sizes, strict=True):
        layers.setdefault(each.layer, []).append((size, each.parameter.numel()))
    return {
        path: GradientEntry(0, combined(*zip(*parts, strict=True)), math.nan)
        for path, parts in layers.items()
    }


def _bar(norm: float, largest: float) -> str:
    """A cell less is a tenth of the norm."""
    if not math.isfinite(norm):
        return "!"
    if not norm or not largest or not norm / largest:
        return ""
    whole, rest = divmod(max(0.0, CELLS + math.log10(norm / largest)), 1)  # the largest is 8 cells exactly
    return "█" * int(whole) + _EIGHTHS[int(rest * 8)].strip()


def _depth(entries: dict[str, GradientEntry]) -> list[str]:
    """AUTOTRAINER's form of vanishing and exploding with depth: it fired in none of 63 healthy runs."""
    sizes = [(path, e.size.norm) for path, e in entries.items() if math.isfinite(e.size.norm)]
    if len(sizes) < 3 or not sizes[-1][1]:
        return []
    (first, near), (last, far) = sizes[0], sizes[-1]
    if near / far < 1e-3 and near < 1e-4:
        return [f"it vanishes with depth: {first} gets {_ratio(near, far)} of what {last} gets"]
    if near / far > 70:
        return [f"it explodes with depth: {first} gets {_ratio(near, far)} times what {last} gets"]
    return []


def _outside(session: Session) -> list[str]:
    outside = outside_optimizers(session)
    return [f"in no optimizer that has stepped: {listed(outside, 6)}"] if outside else []
