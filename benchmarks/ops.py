"""Ops: what stepping by them and points at them cost, beside torch's own modes that do nothing."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.overrides import TorchFunctionMode

from benchmarks.measure import QUICK, Effort, Overhead, Spread, overhead, quiet
from benchmarks.models import Case, all_cases
from benchmarks.variants import BARE, BARE_AGAIN, ENOUGH, NoKernel, Run, Variant, attached, new_session, say
from layerstep.calls.operations import Functions, Kernels
from layerstep.engine.resume import Kind
from layerstep.engine.stepper import Intent
from layerstep.ops.stepping import OpSteps

__all__ = ["OPS", "OpCosts", "measure_ops", "ops_tables"]


class _NoFunction(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _mode(case: Case, *, mode: type[Any]) -> Iterator[Run]:
    def run() -> None:
        with mode():
            case.run()

    yield run


@contextlib.contextmanager
def _point(case: Case, *, line: str) -> Iterator[Run]:
    session = new_session()
    session.add_model(case.model)
    say(session, line.format(path=case.path))
    with attached(session, discover=False):
        yield case.run
        assert any(session.instruments.get(OpSteps).names.values()), "no op was seen"


@contextlib.contextmanager
def _endless(case: Case, *, kind: Kind) -> Iterator[Run]:
    """A step that counts op after op and never comes to its end."""
    session = new_session()
    session.add_model(case.model)
    with attached(session, discover=False):
        session.run.intent = Intent(kind, count=ENOUGH, depth=0, thread=threading.get_ident())
        session.rearm()
        session.instruments.get(OpSteps).settle()
        yield case.run
        assert session.run.intent.kind is kind and session.run.intent.count < ENOUGH


OPS = (
    BARE,
    BARE_AGAIN,
    Variant("a `TorchFunctionMode` that does nothing", partial(_mode, mode=_NoFunction)),
    Variant("`break op:NAME`, never hit", partial(_point, line="break op:nosuchop")),
    Variant("`break op:NAME in PATH`, never hit", partial(_point, line="break op:nosuchop in {path}")),
    Variant("`step op N`, each op counted", partial(_endless, kind=Kind.OP)),
    Variant("a `TorchDispatchMode` that does nothing", partial(_mode, mode=NoKernel)),
    Variant("`break op:aten.NAME`, never hit", partial(_point, line="break op:aten.nosuchop")),
    Variant("`stepi N`, each op counted", partial(_endless, kind=Kind.KERNEL)),
)
_KERNEL_ROWS = 6
"""From this row on it is aten ops that are counted."""


@dataclass(frozen=True, slots=True)
class OpCosts:
    """What was found."""

    overheads: list[tuple[Overhead, int, int]]
    """Of each model, with its ops and aten ops in one forward."""
    first: list[tuple[str, Spread]]
    """Milliseconds of the first op of a fresh process, by mode."""


def measure_ops(effort: Effort) -> OpCosts:
    found = []
    for case in all_cases():
        if case.is_real:
            found.append((overhead(case, effort, OPS), _count(case, Functions), _count(case, Kernels)))
    return OpCosts(found, [(name, _first_op(code, effort)) for name, code in _FIRST.items()])


def _count(case: Case, mode: type[Any]) -> int:
    seen = []

    def around(func: Any, args: Any, kwargs: Any) -> Any:
        seen.append(func)
        return func(*args, **kwargs)

    with mode(around):
        case.run()
    return len(seen)


_FIRST = {
    "without a mode": "contextlib.nullcontext()",
    "under a plain `TorchDispatchMode`": "Plain()",
    "under that of `stepi`": "Kernels(lambda func, args, kwargs: func(*args, **kwargs))",
    "under that of `step op`": "Functions(lambda func, args, kwargs: func(*args, **kwargs))",
}
_CHILD = """
import contextlib, time, torch
from torch.utils._python_dispatch import TorchDispatchMode
from layerstep.calls.operations import Functions, Kernels
class Plain(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {{}}))
x = torch.ones(4)
began = time.perf_counter()
with {mode}:
    x + 1
print((time.perf_counter() - began) * 1e3)
"""


def _first_op(mode: str, effort: Effort) -> Spread:
    command = [sys.executable, "-c", _CHILD.format(mode=mode)]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(effort.processes)
    ]
    return Spread.of(float(done.stdout) for done in runs)


def ops_tables(costs: OpCosts, table: Any) -> str:
    """`table` makes markdown of headings and rows."""
    parts = []
    for found, functions, kernels in costs.overheads:
        rows = []
        for number, variant in enumerate(OPS):
            ops = kernels if number >= _KERNEL_ROWS else functions
            ratio, added = found.ratio(variant), found.added(variant).median * found.calls / ops
            spread = f"{ratio.median:.3f} ({ratio.low:.3f}–{ratio.high:.3f})"
            rows.append((variant.name, spread, f"{added:+.2f}"))
        parts.append(f"### {found.case.name}: {functions} ops, {kernels} aten ops in a forward")
        parts.append(table(("", "CPU time, × bare", "µs per op"), rows))
    first = [(name, f"{spread.median:.2f}") for name, spread in costs.first]
    parts.append(table(("the first op of a fresh process", "ms"), first))
    return "\n\n".join(parts)


if __name__ == "__main__":
    from benchmarks.tables import table

    quiet()
    print(ops_tables(measure_ops(QUICK), table))
