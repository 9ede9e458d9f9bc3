"""Where three tools point on the planted cases: `catch nonfinite`, `detect_anomaly`, hooks with isnan."""

from __future__ import annotations

import io
import re
import warnings
from typing import Any

import torch
from torch import nn

from layerstep import DebugConsole
from layerstep.nonfinite.catching import search_of
from nan_cases import CASES, Case

__all__ = ["page"]

_FRAME = re.compile(r'File "[^"]*nan_cases\.py", line (\d+)')

HEAD = """# Where a NaN was born, and where tools point

Each of {count} small models (`tests/support/nan_cases.py`) has one line that makes the first NaN or Inf.
Three tools look for it:

- `catch nonfinite` is layerstep's.
- `detect_anomaly` is torch's. It checks gradients only, and only for NaN.
- *hooks* are `isnan().any()` in a forward hook of every module, as people write them. They name a
  module, never a line.

*Right line* means exactly that line.

| case | born in | `catch nonfinite` | `detect_anomaly` | hooks |
|---|---|---|---|---|
{rows}

Right line: `catch nonfinite` {ours} of {count}, `detect_anomaly` {anomaly}. Right module: hooks {hooks}.
"""


def steps_of(case: Case, model: nn.Module) -> Any:
    for step in range(1, case.steps + 1):
        loss = model.loss(model(model.data(step)))  # type: ignore[operator]
        if loss.requires_grad:
            loss.backward()
        yield step


def ours(case: Case) -> tuple[bool, str]:
    model = case.make()
    console = DebugConsole(model, commands=["catch nonfinite", *["continue"] * 99], output=io.StringIO())
    with console:
        for _ in steps_of(case, model):
            if search_of(console.session).found is not None:
                break
    found = search_of(console.session).found
    if found is None or not found.is_found:
        return False, "silent"
    right = found.place.line == case.line if case.line else bool(found.source)
    return right, "right line" if right else f"{found.op}, line {found.place.line}"


def anomaly(case: Case) -> tuple[bool, str]:
    model = case.make()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            with torch.autograd.detect_anomaly():
                for _ in steps_of(case, model):
                    pass
            return False, "silent"
        except RuntimeError as error:
            node = re.search(r"Function '(\w+)'", str(error))
            lines = [int(n) for each in told for n in _FRAME.findall(str(each.message))]
            right = bool(lines) and lines[-1] == case.line
            name = f"`{node[1]}`" if node else "an error"
            return right, f"right line, {name}" if right else f"{name}, another line"


def hooks(case: Case) -> tuple[bool, str]:
    model = case.make()
    seen: list[str] = []

    def check(path: str, output: Any) -> None:
        if isinstance(output, tuple):
            output = output[0]
        if isinstance(output, torch.Tensor) and output.isnan().any():
            seen.append(path)

    for path, module in model.named_modules():
        module.register_forward_hook(lambda m, a, out, path=path: check(path, out))
    for _ in steps_of(case, model):
        pass
    if not seen:
        return False, "silent"
    right = case.part == "forward" and (seen[0] in (case.path or "").split("|") or not seen[0])
    return right, (f"`{seen[0]}`" if seen[0] else "the whole model") + ("" if right else ", another module")


def page() -> str:
    """The page as it should be now."""
    rows, totals = [], [0, 0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in CASES:
            answers = [ours(case), anomaly(case), hooks(case)]
            totals = [total + right for total, (right, _) in zip(totals, answers, strict=True)]
            name = re.sub(r"(?<!^)(?=[A-Z])", " ", case.name).lower()
            born = f"{case.part}, `{case.op}`" if not case.source else case.source
            rows.append(f"| {name} | {born} | {' | '.join(text for _, text in answers)} |")
    return HEAD.format(
        count=len(CASES), rows="\n".join(rows), ours=totals[0], anomaly=totals[1], hooks=totals[2]
    )
