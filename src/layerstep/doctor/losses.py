"""The losses of a step: what each `backward()` begins at, and what the graph behind it tells."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FrameType

from torch import Tensor

from layerstep.doctor.bad_origins import BadOrigins
from layerstep.doctor.bad_values import birth_of
from layerstep.doctor.facts import CriterionFacts, LossFacts, OutlierFacts
from layerstep.doctor.finding import Place
from layerstep.doctor.forwards import Forwards
from layerstep.doctor.loss_graph import Criterion, read_graph
from layerstep.doctor.measuring import SAMPLED, criterion_facts, outlier_of
from layerstep.doctor.optimizers import Optimizers
from layerstep.doctor.source_of_loss import line_of, where_made
from layerstep.doctor.training_calls import TrainingCalls

__all__ = ["Losses"]

RECENT = 20
PARTS = 64
"""Batches that may be added up in a step."""
JUMP = 30.0
"""Times the largest of the last losses."""


class Losses:
    """Makes facts of the losses."""

    def __init__(
        self,
        optimizers: Optimizers,
        forwards: Forwards,
        training_calls: TrainingCalls,
        origins: BadOrigins,
    ) -> None:
        self._origins = origins
        self._optimizers = optimizers
        self._forwards = forwards
        self._training_calls = training_calls
        self._since: list[LossFacts] = []
        self._taken: tuple[LossFacts, ...] = ()
        self._takers: set[int] = set()
        self._has_seen_bad = False
        self._recent: deque[float] = deque(maxlen=RECENT)
        self.labels_are_alike = False
        """All labels so far are the same: they are then looked at in each step."""

    def take(self, optimizer: int) -> tuple[LossFacts, ...]:
        """The losses since they were taken last. Several optimizers may step on one backward pass: each gets
        the same ones.
        """
        if not self.are_shared(optimizer):
            self._taken, self._since, self._takers = tuple(self._since), [], set()
        self._takers.add(optimizer)
        return self._taken

    def are_shared(self, optimizer: int) -> bool:
        """Are the losses of this optimizer those that another one has stepped on before?"""
        return not self._since and bool(self._taken) and optimizer not in self._takers

    @property
    def are_finite(self) -> bool:
        """Are the losses since they were taken last?"""
        return all(math.isfinite(each.value) for each in self._since)

    def begins(self, loss: Tensor, frame: FrameType, *, deep: bool) -> None:
        """A backward pass begins at this loss; `deep` reads the graph behind it."""
        self._since.append(self._facts(loss, frame, deep=deep))

    def _facts(self, loss: Tensor, frame: FrameType, *, deep: bool) -> LossFacts:
        value = float(loss.detach()) if loss.numel() == 1 else math.nan
        place = line_of(frame)
        jumps = self._jumps(value)
        is_wanted = deep or self.labels_are_alike or not math.isfinite(value) or jumps
        if not is_wanted or loss.grad_fn is None:
            scale = self._since[-1].scale if self._since else self._optimizers.last_scale(place)
            return LossFacts(value, place, place, scale=scale)
        graph, made_at = read_graph(loss), where_made(frame)
        outputs = self._training_calls.outputs()
        self._training_calls.backward(loss, graph.criteria, made_at)
        tokens = self._forwards.tokens()
        criteria = tuple(criterion_facts(_with_target(each, outputs), tokens) for each in graph.criteria)
        if deep:
            self._forwards.note_labels([each.target.shape for each in criteria if each.target is not None])
        scale, criteria = _as_mean(graph.scale, criteria, self._optimizers.schedulers.scale() or 1.0)
        facts = LossFacts(
            value,
            place,
            made_at,
            scale=scale,
            criteria=criteria,
            is_looked_at=deep,
            over_batch=graph.over_batch,
            is_turned=graph.is_turned,
            is_whole=graph.is_whole,
            lowers_likelihood=graph.lowers_likelihood,
            outlier=self._outlier(graph.criteria) if jumps else None,
        )
        if not math.isfinite(value) and loss.numel() == 1:
            facts = self._with_birth(facts, loss)
        self._optimizers.note_scale(place, scale)
        return facts

    def _jumps(self, value: float) -> bool:
        """Is a loss far above all that came lately? The first one has none before it."""
        known = max(self._recent, default=math.inf)
        if math.isfinite(value):
            self._recent.append(abs(value))
        return value > JUMP * known if known > 0 else False  # not one that is NaN: what made it so is asked

    def _outlier(self, criteria: Sequence[Criterion]) -> OutlierFacts | None:
        given = [("the target", each.target) for each in criteria if each.target is not None]
        found = [outlier_of(name, tensor) for name, tensor in (*given, *self._forwards.given())]
        return max((each for each in found if each), key=lambda each: each.size / each.next, default=None)

    def _with_birth(self, facts: LossFacts, loss: Tensor) -> LossFacts:
        """The same loss, with where it stopped being finite. The losses after the first such one follow from
        it.
        """
        if self._has_seen_bad:
            return facts
        self._has_seen_bad = True
        birth = birth_of(loss, self._optimizers.named(), self._forwards.given())
        line = facts.made_at if birth.is_in_loss else Place()
        born = self._origins.in_forward() if birth.is_from_operation else None
        if born is not None:
            return replace(
                facts, origin=replace(born.where, parameters=birth.parameters), origin_words=born.words
            )
        return replace(facts, origin=replace(line, parameters=birth.parameters), origin_words=birth.words)


def _as_mean(
    scale: float, criteria: tuple[CriterionFacts, ...], scaler: float
) -> tuple[float, tuple[CriterionFacts, ...]]:
    """A sum that is divided by the number of its labels is a mean, and so is one that is divided by those of
    all batches that are added up. Trainers of transformers make it in this way.
    """
    known = criteria[0] if len(criteria) == 1 else None
    if known is None or known.reduction != "sum" or not known.is_alone or known.target is None:
        return scale, criteria
    count = math.prod(known.target.shape) - known.target.ignored
    if math.prod(known.target.shape) > SAMPLED or not 1 / PARTS <= abs(scale) * count / scaler <= 1.001:
        return scale, criteria
    return scale * count, (replace(known, reduction="mean"),)


def _with_target(criterion: Criterion, outputs: Mapping[int, Tensor]) -> Criterion:
    """A loss written out by hand holds the difference alone: the output of the model tells the target."""
    gap = criterion.difference
    if gap is None or criterion.enlarged:
        return criterion
    given = [outputs[number] for number in gap.made_by if number in outputs]
    if len(given) != 1 or given[0].numel() != gap.values.numel():
        return criterion
    return replace(criterion, target=given[0].reshape(gap.values.shape) - gap.sign * gap.values)
