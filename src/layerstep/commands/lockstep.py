from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import nn

from layerstep.arguments import Expr, File, Form, Given, Option, Real, Word
from layerstep.commands.compare import two_operands
from layerstep.engine.session import Session
from layerstep.engine.values import value_of
from layerstep.errors import BadArguments, UserError
from layerstep.layers.calls import LayerCall, calls_here
from layerstep.line_syntax import is_expression
from layerstep.lockstepping.recordings import SUFFIXES, write_run
from layerstep.lockstepping.running import Arguments, trace_of
from layerstep.lockstepping.sides import Side, compare_sides, read_map
from layerstep.lockstepping.views import lockstep_view
from layerstep.registry import command
from layerstep.rerun.kv_caches import CallProgress
from layerstep.tensors.format import human_bytes
from layerstep.views import Notice, View

_INPUT = Option("input", Word("EXPR", name="input", completes="expression"))


@command(
    "lockstep",
    group="look",
    args=(
        Form(
            "",
            Expr("A B", name="both", what="two models or files"),
            Option("tol", Real("T", what="relative error", name="tol")),
            Option("map", Word("FILE", name="map", completes="file")),
            _INPUT,
        ),
        Form("save", Expr("MODEL", what="a model"), File(), _INPUT),
    ),
    examples=(
        "lockstep blocks.0 blocks.1",
        "lockstep blocks.0.norm1 blocks.1.norm1 --input inp",
        "lockstep save model run.safetensors\nlockstep model run.safetensors --tol 1e-4",
    ),
)
def lockstep(session: Session, given: Given) -> View:
    """Run two models side by side; name the layer that differs.

    A and B are models (expressions or paths) or files: runs that `lockstep save` wrote, core files, tensors
    by name. Both run once on copies of one input. That is what A, B or the model of this stop was called with
    last, or `--input EXPR` (a tuple is the arguments, a dictionary those by name). The run stands still and
    is not touched. Layers are matched by weights, values and order, whatever their names. `--map FILE` sets
    some of them, in lines `path of A = path of B`. Weights are compared first. The answer is the first layer
    whose inputs agree and whose outputs differ. It also shows the layers that were matched, and those without
    a counterpart. A difference counts if it is larger than rounding can make it: A runs once more to measure
    that. With `--tol` it counts if it is larger than T, relative to the norm. Against a compiled model, each
    part is compiled by itself. `save` writes what every layer of MODEL gets and returns.
    """
    if given.form == "save":
        return _save(session, given)
    left, right = two_operands(given.both, _is_operand, "lockstep")
    a, b = (_side(session, text) for text in (left, right))
    arguments = _arguments(session, given.input, [each for each in (a, b) if isinstance(each, nn.Module)])
    paths = read_map(given.map) if given.map else None
    found = compare_sides(session, (left, a), (right, b), arguments, tolerance=given.tol, paths=paths)
    return lockstep_view(found, most=max(4, session.run.config.max_lines - 12))


def _is_operand(text: str) -> bool:
    return _is_file(text) or is_expression(text)


def _is_file(text: str) -> bool:
    return text.endswith(SUFFIXES) and os.path.isfile(os.path.expanduser(text))


def _side(session: Session, text: str) -> Side:
    if _is_file(text):
        return Path(os.path.expanduser(text))
    if text.endswith(SUFFIXES) and "(" not in text:
        raise UserError(f"cannot read {text}", "there is no such file")
    return _model(session, text)


def _model(session: Session, text: str) -> nn.Module:
    value = value_of(session.prompt, text)
    if not isinstance(value, nn.Module):
        raise UserError(f"{text} is no model", f"it is a {type(value).__name__}")
    return value


def _arguments(session: Session, text: str, models: list[nn.Module]) -> Arguments | None:
    if text:
        return _typed(value_of(session.prompt, text))
    here = calls_here(session)
    for model in models:
        inside = next((call for call in here if call.module is model), None)
        kept = session.run.seen_calls.get(model)
        if inside is not None:
            return _of_call(inside)
        if kept is not None:
            return Arguments(tuple(kept[0]), dict(kept[1] or {}), CallProgress.AFTER)
    for model in models if here else ():
        if any(part is model for part in here[-1].module.modules()):
            path = session.run.models.path_of(model)
            raise UserError(
                f"what {path} was called with is not in view",
                f"`break {path}`, `record {path} --tensors` before the forward, or `--input EXPR`",
            )
    return _of_call(here[-1]) if here else None


def _of_call(call: LayerCall) -> Arguments:
    return Arguments(call.args, call.kwargs, call.progress)


def _typed(value: Any) -> Arguments:
    if isinstance(value, dict):
        return Arguments((), {str(name): each for name, each in value.items()})
    return Arguments(tuple(value) if isinstance(value, tuple | list) else (value,), {})


def _save(session: Session, given: Given) -> Notice:
    path = Path(os.path.expanduser(given.file))
    if path.suffix != ".safetensors":
        raise BadArguments(f"{given.file} is no name for a run", "it ends in .safetensors")
    model = _model(session, given.model)
    arguments = _arguments(session, given.input, [model])
    if arguments is None:
        raise UserError("no call to take the input from", "`--input EXPR` gives one")
    trace = trace_of(session, model, arguments, title=given.model)
    write_run(trace, path)
    size = human_bytes(path.stat().st_size)
    return Notice(f"{len(trace.calls)} calls of {given.model} in {given.file}, {size}", level="good")
