from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import nn

from layerstep._torch.tensors import is_tensor
from layerstep.arguments import Expr, Given
from layerstep.engine.session import Session
from layerstep.engine.values import as_it_was, value_of
from layerstep.errors import BadArguments, UserError
from layerstep.line_syntax import MOST_WORDS, is_expression
from layerstep.registry import command
from layerstep.tensors.compare import compare
from layerstep.tensors.comparison import Comparison
from layerstep.tensors.files import FileReference, read_tensors
from layerstep.tensors.format import number, place, share
from layerstep.tensors.observing import observing
from layerstep.tensors.present import module_line, tensor_view
from layerstep.tensors.shapes import tensors_in
from layerstep.views import Column, Fields, Figure, Group, Level, Notice, Table, Text, View

MOST_TENSORS = 10_000
COLUMNS = (
    Column("tensor", "path"),
    Column("max", right=True),
    Column("mean", right=True),
    Column("ulp", right=True),
    Column("cosine", right=True),
    Column("in words"),
)


@command(
    "compare",
    group="look",
    args=Expr("A B", name="both", what="two expressions or files"),
    examples=(
        "compare out inp[0]",
        "compare blocks.0.attn.qkv.weight, blocks.1.attn.qkv.weight",
        "compare blocks.0 blocks.1",
        "save-tensor out out.npy\ncompare out out.npy",
    ),
)
def compare_(session: Session, given: Given) -> View:
    """Compare two tensors or modules, or one with a file.

    A and B are expressions, with a space or a comma between them, or files: x.npy, x.safetensors:NAME,
    x.pt:KEY (read as weights only). The answer first says how one became the other: rounded through bf16,
    transposed, heads permuted, scaled, changed in one row. Here NaN equals NaN, and 0 equals -0.
    `ulp` counts steps of the coarser dtype; `close` is what torch.testing.assert_close would say. Containers
    and modules are compared tensor by tensor, by name, with the largest difference first.
    """
    left, right = two_operands(given.both, _is_operand, "compare")
    a, b = (_only_tensor(_value(session, text)) for text in (left, right))
    (a, note), (b, other_note) = as_it_was(session.run, left, a), as_it_was(session.run, right, b)
    view = _compared(session, _Side(left, a), _Side(right, b))
    notes = [Notice(text) for text in (note, other_note) if text]
    return Group((*notes, view)) if notes else view


def _compared(session: Session, one: _Side, two: _Side) -> View:
    (left, a), (right, b) = one, two
    if is_tensor(a) and is_tensor(b):
        with observing():
            found = compare(a, b)
        lines = ((left, tensor_view(a)), (right, tensor_view(b)))
        return Group((Notice(found.words, level=_level(found)), Fields((), (*lines, *_numbers(found)))))
    for side, text, other in ((a, left, right), (b, right, left)):
        if is_tensor(side):
            raise UserError(f"{text} is one tensor and {other} is not", _inside(other))
    return _table(session, one, two)


def _only_tensor(value: Any) -> Any:
    """The tensor of a container that holds one, as many modules return it."""
    leaves = tensors_in(value, most=2)
    return leaves[0][1] if len(leaves) == 1 else value


def _inside(text: str) -> str:
    if FileReference.parse(text) is not None:
        return f"name one in it: {text}:NAME"
    return "compare a tensor with a tensor, a module with a module"


class _Side(NamedTuple):
    text: str
    value: Any

    def leaves(self) -> dict[str, torch.Tensor]:
        """Its tensors by name; a module's parameters and buffers as in its `state_dict`."""
        value = self.value
        if isinstance(value, nn.Module):
            named = [
                *value.named_parameters(remove_duplicate=False),
                *value.named_buffers(remove_duplicate=False),
            ]
            return dict(named[:MOST_TENSORS])
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            flat = {key: item for key, item in value.items() if is_tensor(item)}
            if len(flat) == len(value):
                return dict(list(flat.items())[:MOST_TENSORS])
        found = dict(tensors_in(value, most=MOST_TENSORS))
        if not found:
            raise UserError(f"no tensor in {self.text}", f"it is a {type(value).__name__}")
        return found


def two_operands(text: str, is_operand: Callable[[str], bool], word: str) -> tuple[str, str]:
    """A and B: the first comma, else the first space, that leaves an expression or a file on either side."""
    text = text.strip()
    for signs in (",", " \t"):
        for at in islice(_outside_brackets(text, signs), MOST_WORDS):
            left, right = text[:at].strip(), text[at + 1 :].strip()
            if is_operand(left) and is_operand(right):
                return left, right
    hint = f"{word} A, B"
    raise BadArguments(f"{word} needs two expressions or files", hint)


def _outside_brackets(text: str, signs: str) -> Iterator[int]:
    depth, quote = 0, ""
    for at, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in signs and not depth:
            yield at
        depth += (sign in "([{") - (sign in ")]}") if not quote else 0


def _is_operand(text: str) -> bool:
    return FileReference.parse(text) is not None or is_expression(text)


def _value(session: Session, text: str) -> Any:
    """A name that the run knows is not a file, unless there is one: `state.pt` may be an attribute."""
    reference = FileReference.parse(text)
    if reference is None:
        return value_of(session.prompt, text)
    head = text.partition(".")[0]
    is_known = session.run.scope.knows(head) or bool(session.run.models.ending_in(head))
    if os.path.isfile(reference.path) or not is_known:
        return read_tensors(reference)
    try:
        return value_of(session.prompt, text)
    except UserError as error:
        raise UserError(f"{text} is no file, and as a value: {error.message}", error.hint) from None


def _level(found: Comparison) -> Level:
    return "warn" if not found.is_close else "info" if found.differing else "good"


def _numbers(found: Comparison) -> Iterator[tuple[str, View]]:
    if not found.differing:
        return
    first = f", first at {place(found.first)}" if found.first is not None else ""
    values = f": {_shown(found.there[0])} and {_shown(found.there[1])}" if found.there is not None else ""
    yield (
        "differs",
        Text(
            f"{found.differing:,} of {found.count:,} ({share(found.differing, found.count)}){first}{values}"
        ),
    )
    if found.max_abs is not None:
        sizes = (
            f"max {number(found.max_abs)}  mean {number(found.mean_abs)}  relative {number(found.max_rel)}"
        )
        yield "difference", Text(sizes + (f"  ulp {found.max_ulp:,}" if found.max_ulp is not None else ""))
        yield "direction", Text(f"cosine {_near_one(found.cosine)}  pearson {_near_one(found.pearson)}")
    if found.finite_in_one:
        yield "not finite", Text(f"{found.finite_in_one:,} in one of them only; the figures leave these out")
    rtol, atol = found.tolerances
    yield (
        "close",
        Text(f"{'yes' if found.is_close else 'no'}, by rtol {number(rtol)} and atol {number(atol)}"),
    )


def _shown(value: Any) -> str:
    return f"{value:.8g}" if isinstance(value, float | complex) else str(value)


def _near_one(value: float | None) -> str:
    """The distance from 1 is the news: 1 - 3e-9."""
    if value is None:
        return "-"
    return Figure(f"1 - {number(1 - value)}" if 1e-12 < 1 - value < 1e-4 else f"{value:.6g}", value)


def _table(session: Session, a: _Side, b: _Side) -> Table:
    one, other = a.leaves(), b.leaves()
    both = [name for name in one if name in other]
    if not both and len(one) == len(other):
        pairs = list(zip(one.items(), other.values(), strict=True))  # a tuple against a list, say
    elif both:
        pairs = [((name, one[name]), other[name]) for name in both]
    else:
        raise UserError(f"no tensor of {a.text} has the name of one in {b.text}", "")
    with observing():
        found = [(name, compare(x, y)) for (name, x), y in pairs]
    return _listed(session, found, _left_over(a, b, one, other) if both else "", title=_title(a, b))


def _title(a: _Side, b: _Side) -> str:
    kinds = [
        module_line(s.value) if isinstance(s.value, nn.Module) else type(s.value).__name__ for s in (a, b)
    ]
    return (
        f"{a.text} {kinds[0]} and {b.text} {kinds[1]}" if kinds[0] != kinds[1] else f"{a.text} and {b.text}"
    )


def _left_over(a: _Side, b: _Side, one: dict[str, Any], other: dict[str, Any]) -> str:
    told = []
    for side, mine, theirs in ((a, one, other), (b, other, one)):
        alone = [name for name in mine if name not in theirs]
        if alone:
            more = f" and {len(alone) - 3} more" if len(alone) > 3 else ""
            told.append(f"only in {side.text}: {', '.join(alone[:3])}{more}")
    return "\n".join(told)


def _listed(session: Session, found: list[tuple[str, Comparison]], note: str, *, title: str) -> Table:
    """What differs, most first; what is equal is only counted."""
    rest = [(name, each) for name, each in found if each.differing or not each.is_close]
    rest.sort(
        key=lambda item: (item[1].max_abs is not None, item[1].is_close or False, -(item[1].max_abs or 0))
    )
    most = max(1, session.run.config.max_lines - 4)
    rows = tuple(_row(name, each) for name, each in rest[:most])
    notes = [f"{len(found) - len(rest):,} of {len(found):,} tensors are equal"]
    if len(rest) > most:
        notes.append(f"{len(rest) - most:,} more differ; name a part to see them")
    return Table(COLUMNS, rows, title=title, note="\n".join(filter(None, [", ".join(notes), note])))


def _row(name: str, found: Comparison) -> tuple[str, ...]:
    ulp = "-"
    if found.max_ulp is not None:
        ulp = Figure(f"{found.max_ulp:,}" if found.max_ulp < 100_000 else ">99,999", found.max_ulp)
    figures = (number(found.max_abs), number(found.mean_abs), ulp, _near_one(found.cosine))
    return (name, *figures, found.words)
