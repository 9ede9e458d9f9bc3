"""The numbers of attention heads, against closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from layerstep.attention.heads import findings, look_at_heads


def _heads(*heads: Tensor, allowed: Tensor | None = None, **options: Any) -> Any:
    weights = torch.stack(heads)[None].double()
    mask = torch.ones_like(weights, dtype=torch.bool) if allowed is None else allowed.expand(weights.shape)
    return look_at_heads(weights, mask, **{"offset": 0, **options})


def test_uniform_attention() -> None:
    pattern = _heads(torch.full((6, 6), 1 / 6))
    (head,) = pattern.heads
    assert head.entropy == pytest.approx(math.log(6)) and head.spread == pytest.approx(1)
    assert head.first == pytest.approx(1 / 6) and head.own == pytest.approx(1 / 6)
    assert head.previous == pytest.approx(5 / 36) and head.future == pytest.approx(15 / 36)
    assert head.nearest is None
    assert findings(pattern, means_causal=False) == ["head 0: near uniform"]
    assert "41.7% of a head's mass is in the future" in findings(pattern, means_causal=True)[1]


def test_causal_uniform_attention() -> None:
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    pattern = _heads(mask / mask.sum(-1, keepdim=True), allowed=mask)
    (head,) = pattern.heads
    rows = range(2, 6)  # the first query has no choice, and is not counted
    assert head.entropy == pytest.approx(sum(map(math.log, rows)) / 4) and head.spread == pytest.approx(1)
    assert head.future == 0 and head.own == pytest.approx(sum(1 / n for n in rows) / 4)
    assert pattern.is_causal and pattern.window is None and pattern.open_future == 0


def test_sinks_twins_and_other_findings() -> None:
    sink = torch.zeros(6, 6)
    sink[:, 0] = 1
    back = torch.roll(torch.eye(6), -1, 1)
    pattern = _heads(sink, torch.eye(6), torch.eye(6), back)
    said = findings(pattern, means_causal=False)
    assert said == ["head 0: on the first token, a sink", "almost the same heads: 1 and 2"]
    assert [head.own for head in pattern.heads] == pytest.approx([1 / 6, 1, 1, 0])
    assert pattern.heads[0].entropy == 0
    assert (pattern.heads[1].nearest, pattern.heads[1].cosine) == (2, pytest.approx(1))


def test_mass_on_padding_is_of_the_queries_that_are_tokens() -> None:
    padding = torch.tensor([[False, False, False, True]])
    weights = torch.tensor([[0.5, 0.5, 0, 0], [0.25, 0.25, 0, 0.5], [0, 0, 0.9, 0.1], [0, 0, 0, 1]])
    pattern = _heads(weights, padding=padding)
    assert pattern.heads[0].padding == pytest.approx(0.2)
    assert "head 0: on padding" in findings(pattern, means_causal=False)


def test_holes_in_a_causal_mask() -> None:
    mask = torch.ones(6, 6, dtype=torch.bool).tril(1)  # off by one
    said = findings(_heads(mask / mask.sum(-1, keepdim=True), allowed=mask), means_causal=False)
    assert any("a causal mask with holes" in line for line in said)


def test_rows_that_are_no_distribution() -> None:
    weights = torch.full((4, 4), 0.25)
    weights[0] = 0.5
    weights[1] = math.nan
    weights[2] = 0
    allowed = torch.ones(4, 4, dtype=torch.bool)
    allowed[2] = False
    said = findings(_heads(weights, allowed=allowed), means_causal=False)
    assert "1 of 4 rows do not sum to 1" in said
    assert "1 of 4 rows may look at nothing" in said
    assert "1 of 4 rows are NaN" in said
