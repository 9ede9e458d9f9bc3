"""How a model treats a row of tokens: tried once, on a copy in evaluation mode.

Does a later token change an earlier output? Does the order of the tokens matter? Does padding change the
outputs at real tokens, or hide them? One row of the last training batch is changed and given to a copy.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from layerstep._torch import drop_hooks
from layerstep._torch.tensors import is_tensor, size_of
from layerstep.doctor.measuring import is_readable, shift_of
from layerstep.doctor.padding import Padding, padding_of
from layerstep.doctor.sequence_facts import LEAK, SequenceFacts
from layerstep.doctor.traced import first_difference
from layerstep.doctor.training_calls import TrainingCall
from layerstep.doctor.trial import trying
from layerstep.doctor.tried_rows import Rows, change_of, is_attention
from layerstep.errors import UserError, first_line
from layerstep.rerun.twins import twin_of
from layerstep.tensors.format import human_bytes

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["LOOKS_AT_TOKENS", "has_padding", "has_tokens", "look_at_tokens"]

LOOKS_AT_TOKENS = (3, 6, 9)
MOST_BYTES = 1 << 30
"""Of the parameters: a larger model is not copied unasked."""
SHORTEST = 6
"""Tokens that a row must have."""
HIDDEN = 1e-6
IGNORED = -100
"""The label that loss functions of torch ignore by themselves."""


def has_tokens(call: TrainingCall) -> bool:
    """Was the model called with rows of tokens?"""
    return bool(_tokens_of(call))


def has_padding(call: TrainingCall) -> bool:
    """Is there padding at the end of a row of the batch?"""
    named, found = _named(call), _tokens_of(call)
    return any(
        padding_of(named, name, _rows(call, tokens), call.module, _labels(call, tokens)) is not None
        for name, tokens in found
    )


def look_at_tokens(session: Session, call: TrainingCall) -> SequenceFacts:
    """What a copy of the model shows."""
    model = session.run.models.by_root(call.module)
    name, tokens = _tokens_of(call)[0]
    facts = SequenceFacts(
        model.name if model is not None else "",
        name,
        int(tokens.shape[1]),
        call.made_at,
        has_attention=any(map(is_attention, call.module.modules())),
        table=_table(session, call.module),
    )
    size = sum(map(size_of, call.module.parameters()))
    if size > MOST_BYTES:
        return replace(facts, skipped=f"its parameters take {human_bytes(size)}, too much to copy unasked")
    full_path = partial(session.run.models.full_path, model) if model is not None else str
    try:
        with trying(session, call.module), torch.no_grad():
            looks = list(_looks(call, full_path))
            main = next(look for look in looks if look.is_read())
            facts = main.add_to(facts)
            return _of_other_inputs([look for look in looks if look is not main], facts)
    except UserError as error:
        return replace(facts, skipped=str(error))
    except StopIteration:
        return replace(facts, skipped="its output does not depend on any row of tokens")
    except Exception as error:  # the model's own code, on other inputs than it expects
        line = f"{type(error).__name__}: {first_line(error)}"[:160]
        return replace(facts, skipped=f"a copy did not take one row: {line}")


def _of_other_inputs(looks: list[_Look], facts: SequenceFacts) -> SequenceFacts:
    """The facts with what the padding of the other inputs does: the source of a translator, or the other
    text of a pair.
    """
    for look in looks:
        if facts.hidden or (facts.padding_change or 0.0) > LEAK:
            break
        with contextlib.suppress(Exception):  # the model's own code, on other inputs than it expects
            facts = look.with_padding(facts)
    return facts


def _looks(call: TrainingCall, full_path: Callable[[str], str]) -> Iterator[_Look]:
    """The arguments to look at, the likeliest first: those whose next token is the label.

    The target of a translator is one, and so are the labels that a model shifts by itself; the latter act on
    no output, and are passed over.
    """
    model = twin_of(call.module).eval()
    drop_hooks(model)
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters()):
        model = model.float()  # small changes would drown in the rounding

    def rank(each: tuple[str, Tensor]) -> tuple[bool, bool]:
        return _shift(call, each[1]) != 1, _shift(call, each[1]) is None

    for name, tokens in sorted(_tokens_of(call), key=rank):
        yield _Look(call, model, (name, tokens), full_path)


def _table(session: Session, module: nn.Module) -> str:
    """The path of the first embedding of a model."""
    model = session.run.models.by_root(module)
    paths = (path for path, part in module.named_modules() if isinstance(part, nn.Embedding))
    first = next(paths, "")
    return session.run.models.full_path(model, first) if model is not None else first


def _tokens_of(call: TrainingCall) -> list[tuple[str, Tensor]]:
    """The arguments that may be rows of tokens: whole numbers, more than two of them."""
    found = []
    for name, value in _named(call).items():
        if (
            is_tensor(value)
            and value.dtype in (torch.int64, torch.int32)
            and value.ndim == 2
            and value.shape[1] >= SHORTEST
            and is_readable(value)
            and int(value.max()) > 1
        ):
            found.append((name, value))
    has_table = any(isinstance(part, nn.Embedding) for part in call.module.modules())
    return found if has_table else []


def _named(call: TrainingCall) -> dict[str, Any]:
    """The arguments by their names; those in a dictionary by their keys, those in a tuple by their places."""
    found: dict[str, Any] = {}
    for name, value in _arguments(call).items():
        if isinstance(value, Mapping):
            found.update({str(key): each for key, each in value.items()})
        elif type(value) in (tuple, list) and any(map(is_tensor, value)):
            found.update({f"{name} {place}": each for place, each in enumerate(value)})
        else:
            found[name] = value
    return found


def _arguments(call: TrainingCall) -> dict[str, Any]:
    try:
        bound = inspect.signature(call.module.forward).bind(*call.args, **call.kwargs)
    except (TypeError, ValueError):
        return {**{f"input {place}": value for place, value in enumerate(call.args)}, **call.kwargs}
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found.update({f"{name} {place}": each for place, each in enumerate(value)})
        elif kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found


def _shift(call: TrainingCall, tokens: Tensor) -> int | None:
    rows = _rows(call, tokens)
    shifts = [shift_of(labels, [rows], ignored) for labels, ignored in _labels(call, tokens)]
    return 1 if 1 in shifts else next((shift for shift in shifts if shift is not None), None)


def _is_time_first(call: TrainingCall, tokens: Tensor) -> bool:
    """Are the texts the columns? The labels tell: there is one for each text, or they are the tokens of the
    row below. A batch of as many texts as tokens is taken to have a row for each.
    """
    length, batch = tokens.shape
    if length == batch or any(shift_of(each, [tokens], ignored) is not None for each, ignored in call.labels):
        return False
    sizes = {tuple(labels.shape) for labels, _ in call.labels}
    turned = [
        shift_of(labels.reshape(-1, batch).t(), [tokens.t()], ignored)
        for labels, ignored in call.labels
        if labels.numel() % batch == 0
    ]
    return sizes == {(batch,)} or any(shift is not None for shift in turned)


def _rows(call: TrainingCall, tokens: Tensor) -> Tensor:
    """The tokens with a row for each text."""
    return tokens.t().contiguous() if _is_time_first(call, tokens) else tokens


def _labels(call: TrainingCall, tokens: Tensor) -> tuple[tuple[Tensor, int | None], ...]:
    """The labels of the call in the order of those rows."""
    if not _is_time_first(call, tokens):
        return call.labels
    batch = int(tokens.shape[1])
    return tuple(
        (labels.reshape(-1, batch).t() if labels.numel() % batch == 0 else labels, ignored)
        for labels, ignored in call.labels
    )


class _Look:
    """One look at a copy."""

    def __init__(
        self,
        call: TrainingCall,
        model: nn.Module,
        named: tuple[str, Tensor],
        full_path: Callable[[str], str],
    ) -> None:
        self._name, tokens = named
        self._shift, self._labels = _shift(call, tokens), _labels(call, tokens)
        self._tokens = _rows(call, tokens)
        self._width = int(self._tokens.shape[1])
        self._full_path = full_path
        self._reads_each_other = any(map(is_attention, model.modules()))
        self._padding = padding_of(_named(call), self._name, self._tokens, model, self._labels)
        others = [
            each
            for name, each in _tokens_of(call)
            if each is not tokens and not _goes_along(name, each, tokens)
        ]
        self._rows = Rows(call, model, self._tokens, others, time_first=_is_time_first(call, tokens))

    def is_read(self) -> bool:
        """Do these tokens act on the output at all? Labels do not."""
        other = self._rows.other_tokens(0)
        if other is None:
            return True
        plain, changed = self._rows.run(0), self._rows.run(0, lambda ids: other)
        return not plain.is_finite or change_of(plain, changed, slice(0, self._width)) > 0

    def add_to(self, found: SequenceFacts) -> SequenceFacts:
        """The facts with what a copy shows."""
        padding = self._padding
        has_attention = found.has_attention or self._width in self._rows.softmax_sizes(0)
        found = replace(
            found, name=self._name, length=self._width, shift=self._shift, has_attention=has_attention
        )
        lengths = padding.lengths if padding is not None else [self._width] * len(self._tokens)
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        if lengths[longest] >= SHORTEST:
            found = self._whole_row(longest, self._real(lengths[longest]), found)
        return found if padding is None else self._padded_row(padding, found)

    def with_padding(self, found: SequenceFacts) -> SequenceFacts:
        """The facts with what the padding of these tokens does, if they have some and act on the output."""
        if self._padding is None or not self.is_read():
            return found
        return self._padded_row(self._padding, found)

    def _real(self, length: int) -> slice:
        """The places of the real tokens of a row."""
        is_left = self._padding is not None and self._padding.is_left
        return slice(self._width - length, self._width) if is_left else slice(0, length)

    def _whole_row(self, row: int, real: slice, found: SequenceFacts) -> SequenceFacts:
        """The row with the most real tokens: may later tokens act on earlier ones, does the order matter?"""
        plain, other = self._rows.run(row), self._rows.other_tokens(row)
        if other is None or not plain.is_finite:
            return found
        ends, inner = plain.ends(real), slice(real.start + 1, real.stop - 1)
        turned = self._tokens[row : row + 1].clone()
        turned[:, inner] = turned[:, inner].flip(1)
        found = replace(found, context=change_of(plain, self._rows.run(row, _with(other, inner)), ends))
        if not torch.equal(turned, self._tokens[row : row + 1]):
            reversed_ = self._rows.run(row, _with(turned, inner))
            found = replace(found, order=change_of(plain, reversed_, ends))
        cut, counted = self._border(row, real)
        if not plain.has_places or not cut:
            return found
        later = _with(other, slice(cut, real.stop))
        leak = change_of(plain, self._rows.run(row, later), counted)
        at = ""
        if leak > LEAK:
            traces = self._rows.traced(row), self._rows.traced(row, later)
            before = slice(0, cut)
            at = first_difference(*traces, lambda one, two: self._differ_at(one, two, before)) or ""
        return replace(found, leak=leak, leak_at=self._full_path(at) if at else "")

    def _padded_row(self, padding: Padding, found: SequenceFacts) -> SequenceFacts:
        """A row with padding: does it matter to the real tokens, and do they see each other?"""
        row, length = padding.row, padding.lengths[padding.row]
        plain, other = self._rows.run(row), self._rows.other_tokens(row)
        if not plain.is_finite or other is None:
            return found
        real = self._real(length)
        # What is behind can be cut off. Without what is before, the real tokens would have other positions.
        without: dict[str, Any] = {"shaken": slice(0, real.start)} if real.start else {"length": length}
        try:
            cut = self._rows.run(row, **without)
        except Exception:  # a model of one length, whose positions do not fit fewer tokens
            without = {"shaken": slice(real.stop, self._width)}
            cut = self._rows.run(row, **without)
        change = change_of(plain, cut, real)
        inner = self._rows.run(row, _with(other, slice(real.start + 1, real.stop - 1)))
        seen = change_of(plain, inner, plain.ends(real), inside=True)
        at, is_hidden = "", self._reads_each_other and plain.last is not None and seen < HIDDEN
        least = LEAK * max(1.0, found.context or 0.0)  # one number for the row has no spread to compare with
        if not plain.has_places:  # as an attention that pools makes it
            is_hidden |= change_of(plain, self._rows.run(row, _with(other, real)), real) < HIDDEN
        if change > least:
            traces = self._rows.traced(row), self._rows.traced(row, **without)
            at = first_difference(*traces, lambda one, two: self._differ_at(one, two, real)) or ""
            turned = self._rows.turned_mask(row, real)
            at, is_hidden = turned or at, is_hidden or bool(turned)
        return replace(
            found,
            padding=self._width - length,
            padding_known_by=padding.known_by,
            padding_change=change,
            padding_at=self._full_path(at) if at else "",
            hidden=found.has_attention and is_hidden and change > least,
        )

    def _border(self, row: int, real: slice) -> tuple[int, Tensor]:
        """A place in the row, and the places before it whose labels count; 0 if there are too few."""
        counted = torch.zeros(self._width, dtype=torch.bool)
        counted[real] = True
        for labels, ignored in self._labels:
            if ignored is not None and labels.numel() % len(self._tokens) == 0:
                own = labels.reshape(len(self._tokens), -1)[row][: self._width]
                counted[: len(own)] &= (own != ignored).cpu()
        places = counted.nonzero().flatten()
        cut = int(places[len(places) // 2]) if len(places) >= 4 else 0
        return cut, places[places < cut]

    def _differ_at(self, one: Tensor, other: Tensor, places: slice) -> bool:
        """Do two values differ at some places? Only values that have one for each token are compared."""
        if one.ndim < 2 or other.ndim < 2:
            return False
        one, other = self._rows.turned(one, len(one)), self._rows.turned(other, len(other))
        if one.shape[1] != self._width or not one.is_floating_point():
            return False
        before, after = one[:, places].double(), other[:, places].double()
        if before.shape != after.shape:
            return False
        gap = (before - after).abs().nan_to_num(nan=math.inf).max()
        return bool(gap > LEAK * (before.std() + 1e-12))


def _goes_along(name: str, other: Tensor, tokens: Tensor) -> bool:
    """Are these the labels of the tokens, which a model that makes its own loss is given? They are cut as the
    tokens are.
    """
    return "label" in name.lower() or shift_of(other, [tokens], IGNORED) is not None


def _with(values: Tensor, places: slice) -> Callable[[Tensor], Tensor]:
    """Puts other tokens into some places of a row."""

    def put(ids: Tensor) -> Tensor:
        changed = ids.clone()
        changed[:, places] = values[:, places]
        return changed

    return put
