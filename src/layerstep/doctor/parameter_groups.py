"""The groups of an optimizer as facts: rates, weight decay, and the names of their parameters."""

from __future__ import annotations

import math
from typing import Any

from layerstep.doctor.facts import GroupFacts
from layerstep.training_steps.steps import Stepped

__all__ = ["ParameterGroups"]

MOST_NAMES = 512
"""The names of a larger group are left out."""


class ParameterGroups:
    """Keeps the names of the parameters of each group while the group is the same."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[tuple[int, ...], list[tuple[str, ...]]]] = {}

    def facts(self, stepped: Stepped, names: dict[int, str]) -> tuple[GroupFacts, ...]:
        """The groups of an optimizer; `names` are those of parameters, by their ids."""
        optimizer = stepped.optimizer
        groups = optimizer.param_groups if optimizer is not None else []
        return tuple(
            GroupFacts(
                _number(group.get("lr"), math.nan),
                _number(group.get("weight_decay"), 0.0),
                known,
                _number(group["initial_lr"], math.nan) if "initial_lr" in group else None,
                bool(group.get("maximize", False)),
            )
            for group, known in zip(groups, self._names_of(stepped.number, groups, names), strict=True)
        )

    def _names_of(
        self, number: int, groups: list[dict[str, Any]], names: dict[int, str]
    ) -> list[tuple[str, ...]]:
        sizes = (len(group["params"]) for group in groups)
        key = (id(names), *(id(group["params"]) for group in groups), *sizes)
        known = self._told.get(number)
        if known is None or known[0] != key:
            found = [
                tuple(names.get(id(p), "") for p in group["params"])
                if len(group["params"]) <= MOST_NAMES
                else ()
                for group in groups
            ]
            known = self._told[number] = (key, found)
        return known[1]


def _number(value: Any, default: float) -> float:
    """A setting of an optimizer, which may be a tensor, or none."""
    return float(value) if value is not None else default
