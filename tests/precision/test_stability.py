"""Numerical stability: what tensors, updates and ops are named for, with planted faults, and who is not."""

from __future__ import annotations

import copy
import functools
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layerstep
from layerstep import StabilityChecker, StabilityIssue, UserError
from layerstep.precision.shadow_run import relative_error
from layerstep.precision.stability import (
    Thresholds,
    check_update,
    check_values,
    computes_in_f16,
    mantissa,
    worst_first,
)
from zoo import ZOO, console_on, differences, entry_named, hook_count, loop, play, seed, taps_on


def _kinds(tensor: Tensor, **options: Any) -> list[str]:
    return [issue.kind for issue in check_values(tensor, "x", **options)]


# --- the values of a tensor ---


@pytest.mark.parametrize(
    ("tensor", "kinds"),
    [
        (torch.tensor([1.0, math.nan, 2.0]), ["nan"]),
        (torch.tensor([1.0, math.inf, 2.0]), ["inf"]),
        (torch.tensor([[0.0, -math.inf], [0.0, 0.0]]), []),  # a mask
        (torch.tensor([[0.0, -3.4028235e38], [3.0, 1.0]]), []),  # a mask of the least number
        (torch.tensor([60_000.0, 1.0], dtype=torch.float16), ["overflow"]),
        (torch.tensor([-50_000.0, 1.0], dtype=torch.float16), ["overflow"]),
        (torch.tensor([8_000.0, 1.0], dtype=torch.float16)[:, None], ["overflow"]),  # its square
        (torch.tensor([100.0, 1.0], dtype=torch.float16), []),
        (torch.tensor([3e38, 1.0]), ["overflow"]),
        (torch.tensor([1e5, 1.0]), []),  # in f16 only
        (torch.tensor([3e7, 1.0]), ["overflow"]),  # it has exploded
        (torch.tensor([[2.0, -1e9], [-1e9, -1e9]]), []),  # scores and a mask
        (torch.linspace(1, 9, 100) * 1e-40, ["underflow"]),
        (torch.linspace(1, 9, 100).half() * 1e-6, ["underflow"]),
        (torch.linspace(1, 9, 100)[:, None] * 1e-10, []),  # in f16 only
        (1e4 + 1e-1 * torch.linspace(-1, 1, 100), ["precision"]),
        (1e3 + torch.linspace(-1, 1, 100), []),
        ((64 + torch.linspace(-1, 1, 100)).bfloat16(), ["precision"]),
        (torch.full((100,), 3.0), []),
        (torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), []),
        (torch.randint(0, 9, (9,)), []),
        (torch.empty(0), []),
        (torch.ones(3, device="meta"), []),
        (torch.eye(3).to_sparse(), []),
        (torch.tensor([1.0 + 2.0j]), []),
    ],
)
def test_values(tensor: Tensor, kinds: list[str]) -> None:
    assert _kinds(tensor) == kinds


def test_what_f16_would_do_is_told_where_the_run_computes_in_f16() -> None:
    for tensor, kind in (
        (torch.tensor([1e5, 1.0]), "overflow"),
        (torch.linspace(1, 9, 100)[:, None] * 1e-10, "underflow"),
    ):
        (issue,) = check_values(tensor, "x", in_f16=True)
        assert issue.kind == kind and "f16" in issue.evidence and issue.severity == "info"
    assert computes_in_f16([torch.ones(2).half()]) and not computes_in_f16([torch.ones(2)])
    with torch.autocast("cpu", dtype=torch.float16):
        assert computes_in_f16([])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not computes_in_f16([])


def test_a_model_that_has_exploded_is_told_so() -> None:
    (issue,) = check_values(torch.tensor([3e7, 1.0]), "fc")
    assert "exploded" in issue.evidence and "f16" not in issue.evidence + issue.advice


def test_evidence_has_the_numbers() -> None:
    (issue,) = check_values(torch.tensor([32752.0, 1.0], dtype=torch.float16), "fc")
    assert issue == StabilityIssue(
        "fc",
        "overflow",
        "warn",
        "|x| up to 3.28e4: 1.0 powers of two below the end of f16",
        "bf16 or f32 here, or scale down",
    )
    (issue,) = check_values(torch.tensor([[1.0, 2.0], [math.nan, 3.0]]), "fc")
    assert issue.evidence == "1 of 4, first at [1, 0]" and issue.severity == "error"
    (issue,) = check_values(2.0**14 + torch.linspace(-1, 1, 101), "fc")
    spread = 2.0**14 / torch.linspace(-1, 1, 101).std(correction=0).item()
    assert f"{math.log2(spread):.0f} of 24 bits" in issue.evidence
    assert [mantissa(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)] == [24, 11, 8]


def test_a_gain_near_one_is_no_lost_precision() -> None:
    gain = 1 + 1e-5 * torch.linspace(-1, 1, 100)
    assert _kinds(gain, role="parameter") == [] and _kinds(gain) == ["precision"]


def test_the_worst_comes_first() -> None:
    tensors = [torch.tensor([1e5]), torch.tensor([3e38]), torch.tensor([math.nan])]
    issues = [issue for tensor in tensors for issue in check_values(tensor, "x", in_f16=True)]
    assert [issue.severity for issue in worst_first(issues)] == ["error", "warn", "info"]


# --- updates that are lost ---


def _update(
    dtype: torch.dtype, rate: float, kind: type[torch.optim.Optimizer], steps: int
) -> list[StabilityIssue]:
    weight = nn.Parameter(torch.linspace(0.5, 2.0, 100).to(dtype))
    optimizer = kind([weight], lr=rate)  # type: ignore[call-arg]
    for _ in range(steps):
        weight.grad = torch.full_like(weight, 0.5)
        optimizer.step()
    weight.grad = torch.full_like(weight, 0.5)
    return check_update(weight, "w", optimizer)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("steps", [0, 3])
def test_an_update_below_the_last_digit_is_lost(kind: Any, steps: int) -> None:
    lost = _update(torch.bfloat16, 1e-4, kind, steps)
    assert [issue.kind for issue in lost] == ["precision"] and "100% of the updates are lost" in lost[
        0
    ].evidence
    assert _update(torch.float32, 1e-4, kind, steps) == []
    assert _update(torch.bfloat16, 0.1, kind, steps) == []


def test_a_lost_update_is_one_that_changes_nothing() -> None:
    """The share is what a step of the optimizer really leaves as it was."""
    weight = nn.Parameter(torch.linspace(0.01, 2.0, 997).bfloat16())
    weight.grad = torch.full_like(weight, 1.0)
    before, optimizer = weight.detach().clone(), torch.optim.SGD([weight], lr=1e-3)
    (issue,) = check_update(weight, "w", optimizer, thresholds=Thresholds(lost_updates=0.1))
    optimizer.step()
    same = (weight == before).float().mean().item()
    assert abs(float(issue.evidence.partition("%")[0]) / 100 - same) < 0.02


# --- the checker ---


def test_checking_tensors() -> None:
    checker = StabilityChecker()
    assert checker.check_tensor(torch.ones(3, 3)) == []
    found = checker.check_tensor(torch.tensor([math.nan]), "logits")
    checker.check_tensor(torch.tensor([math.nan]), "logits")
    assert checker.get_issues() == found and found[0].layer == "logits"
    checker.clear()
    assert checker.get_issues() == []


def test_thresholds() -> None:
    half = torch.tensor([10_000.0], dtype=torch.float16)
    assert [i.severity for i in StabilityChecker(headroom=4).check_tensor(half)] == ["warn"]
    with pytest.raises(UserError, match="no threshold 'heads'"):
        StabilityChecker(heads=4)
    with pytest.raises(UserError, match="headroom must be a number"):
        StabilityChecker(headroom="much")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs a tensor"):
        StabilityChecker().check_tensor(3.0)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="watches a model"):
        StabilityChecker().attach()
    with pytest.raises(UserError, match=r"needs an nn\.Module"):
        StabilityChecker("model")  # type: ignore[arg-type]


class Loud(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x) * 1e38)


def test_a_checker_on_a_model() -> None:
    torch.manual_seed(0)
    model = Loud()
    with StabilityChecker(model) as checker:
        model(torch.full((2, 4), 10.0))
        assert taps_on(model)
        copy.deepcopy(model), pickle.dumps(model)
    assert not taps_on(model) and hook_count(model) == 0
    assert {issue.layer for issue in checker.get_issues()} >= {"head"}
    assert all(issue.layer != "body" for issue in checker.get_issues())
    model(torch.full((2, 4), math.nan))
    assert all(issue.layer != "body" for issue in checker.get_issues()), "it is not attached"


def test_a_checker_sees_gradients_at_the_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with StabilityChecker(model) as checker:
        for _ in range(3):
            model(torch.randn(4, 8).bfloat16()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        model(torch.full((4, 8), math.inf).bfloat16()).sum().backward()
        optimizer.step()
    found = {(issue.layer, issue.kind) for issue in checker.get_issues()}
    assert ("0.weight", "precision") in found
    assert {("0.weight.grad", "nan"), ("0.weight.grad", "inf")} & found


def test_training_is_the_same_under_a_checker() -> None:
    entry, optimizer = entry_named("mlp"), functools.partial(torch.optim.AdamW, lr=0.01)
    bare = play(entry, "train", optimizer=optimizer)
    seed(0)
    model = entry.build()
    seed(1)
    with StabilityChecker(model):
        state = loop(entry, model, "train", 2, optimizer)
    assert differences(bare.state, state) == []


def test_a_checker_is_inert_where_layerstep_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERSTEP", "0")
    model = Loud()
    with StabilityChecker(model):
        assert not taps_on(model)


def test_the_names_are_public() -> None:
    assert layerstep.StabilityChecker is StabilityChecker and layerstep.StabilityIssue is StabilityIssue


# --- ops ---


class Variance(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x + 1e4
        second, first = (x * x).mean(-1), x.mean(-1)
        return second - first**2  # the variance


class Logs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(1 + x.abs() * 1e-6)  # the logarithm


class Exponentials(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x * 1e-6) - 1  # the exponential


class HandMadeSoftmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        powers = (x.half() * 12).exp()  # the powers
        return powers / powers.sum(-1, keepdim=True)


class LargeLogits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        scores = x.half() * 5_000
        return F.softmax(scores, -1)  # the softmax


class LogSumExp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.abs() + 87).exp().sum(-1).log()  # the powers


class Divided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / (x * 0)  # the quotient


class Rooted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu().sqrt()  # the root


class Near(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.half().clamp(-1, 1) * 65_000


class Vanished(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.half() * 1e-9  # the product


class Twice(nn.Module):
    """A norm by hand of what is normal already: its mean has no right digit, and needs none."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x, (64,))
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()


class Masked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        least = torch.finfo(x.dtype).min
        mask = torch.zeros(64, 64).masked_fill(torch.ones(64, 64).triu(1) > 0, least)
        scores = (x.T @ x) + mask + mask
        ones = (1 - torch.ones(64)) * -10_000.0
        return scores.softmax(-1) * (1 + ones)


FAULTS = [
    (Variance, "cancellation", "sub", "# the variance", "E[x²] - E[x]²"),
    (Logs, "cancellation", "log", "# the logarithm", "log1p"),
    (Exponentials, "cancellation", "sub", "# the exponential", "expm1"),
    (HandMadeSoftmax, "overflow", "exp", "# the powers", "softmax"),
    (LargeLogits, "precision", "_softmax", "# the softmax", "f32"),
    (LogSumExp, "overflow", "exp", "# the powers", "logsumexp"),
    (Divided, "inf", "div", "# the quotient", "eps"),
    (Rooted, "inf", "sqrt", "# the root", "eps"),
    (Vanished, "underflow", "mul", "# the product", "scale up"),
]


def _input() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(8, 64)


@pytest.mark.parametrize(("module", "kind", "op", "line", "advice"), FAULTS)
def test_an_op_at_fault_is_named_with_its_line(
    module: type[nn.Module], kind: str, op: str, line: str, advice: str
) -> None:
    issues = StabilityChecker(nn.Sequential(module())).check_operations(_input())
    found = [issue for issue in issues if issue.kind == kind and issue.place.startswith(f"{op} at ")]
    assert len(found) == 1, issues
    assert found[0].layer == "0" or found[0].layer.endswith(".0")
    assert "test_stability.py:" in found[0].place and line in found[0].place
    assert advice in found[0].advice


@pytest.mark.parametrize("module", [Twice, Masked, Near])
def test_an_op_that_is_sound_is_not(module: type[nn.Module]) -> None:
    assert StabilityChecker(module()).check_operations(_input()) == []


def test_operations_are_run_without_a_trace() -> None:
    model = nn.Sequential(nn.BatchNorm1d(64), nn.Dropout(0.5), Variance())
    x = _input().requires_grad_()
    before, stream = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    assert StabilityChecker(model).check_operations(x)
    assert differences(before, copy.deepcopy(model.state_dict())) == []
    assert torch.equal(stream, torch.get_rng_state()) and x._version == 0 and x.grad is None
    assert hook_count(model) == 0


def test_errors_are_relative_to_the_value_or_the_mean() -> None:
    right = torch.tensor([1.0, 1.0, 1e-9, 100.0], dtype=torch.float64)
    assert relative_error(right.float(), right) < 1e-7
    assert relative_error((right + torch.tensor([0, 0, 1e-3, 0])).float(), right) == pytest.approx(
        2e-5, rel=0.1
    )
    assert relative_error((right * torch.tensor([1, 1, 1, 1.01])).float(), right) == pytest.approx(
        0.01, rel=1e-3
    )
    bad = torch.tensor([1.0, math.inf, 1e-9, 100.0])
    assert relative_error(bad, right) == math.inf
    assert relative_error(bad, bad.double()) == 0
    assert relative_error(torch.full((2,), math.nan), torch.full((2,), math.nan, dtype=torch.float64)) == 0
    assert relative_error(torch.tensor([math.nan, 1.0]), torch.ones(2, dtype=torch.float64)) == math.inf


# --- the command ---

HEALTHY = ("mlp", "resnet", "lstm", "encoder", "gpt2", "bert", "dict", "autocast", "checkpoint", "statistics")


def _answers(text: str, line: str) -> list[str]:
    return [part.partition("(layerstep)")[0] for part in text.split(f"(layerstep) {line}\n")[1:]]


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_healthy_model_gives_no_alarm(name: str, mode: str) -> None:
    entry = entry_named(name)
    lines = ["record ** --tensors", f"break {entry.inner}", "continue"]
    run = play(entry, mode, [*lines, *["stability", "stability **", "continue"] * 2])
    answers = _answers(run.seen.text, "stability") + _answers(run.seen.text, "stability **")
    assert len(answers) >= 4
    for answer in answers:
        words = {word for line in answer.splitlines() for word in line.split()}
        assert not words & {"cancellation", "precision", "overflow", "nan", "inf"}, answer
        assert "followed in f64" in answer.replace("\n", " ")


LOOK = ("stability", "stability **", "shadow fp64", "shadow fp64 --tol 1e-9")


@pytest.mark.parametrize("entry", ZOO, ids=str)
def test_a_run_is_the_same_with_and_without(entry: Any) -> None:
    for mode in entry.modes:
        bare = play(entry, mode)
        lines = [f"break {entry.inner}", f"break {entry.inner} enter", "continue"]
        run = play(entry, mode, [*lines, *[*LOOK, "perturbed?", "continue"] * 3])
        assert differences(bare.state, run.state) == []
        assert run.seen.bugs == [] and run.seen.stops
        assert not run.seen.is_perturbed
        assert not taps_on(run.model) and hook_count(run.model) == hook_count(bare.model)


def test_the_table() -> None:
    model = nn.Sequential(nn.Linear(64, 64), Variance())
    console, seen = console_on(model, ["break 1", "continue", "stability", "stability 0", "stability a b"])
    with console:
        model(_input())
    (answer,) = _answers(seen.text, "stability")
    head, row, *_ = [line for line in answer.splitlines() if line.strip()]
    assert head.split() == ["where", "what", "evidence"]
    assert row.startswith("1 ") and "cancellation" in row
    words = " ".join(answer.split())
    assert "# the variance" in words and "→ a variance as E[x²] - E[x]²" in words
    assert "no call is in view" in " ".join(_answers(seen.text, "stability 0")[0].split())
    assert "is too much" in seen.text


def test_lost_updates_at_a_stop() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    console, seen = console_on(model, ["until step 2", "stability"])
    with console:
        for _ in range(4):
            model(torch.ones(4, 8).bfloat16()).square().mean().backward()
            optimizer.step()
    assert "updates are lost" in " ".join(seen.text.split())


def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "stability.md"
    exec(
        compile(page.read_text().partition("```python\n")[2].partition("```")[0], "stability.md", "exec"), {}
    )
    assert "0.weight precision 100% of the updates are lost" in capsys.readouterr().out
