"""`python -m benchmarks`: measure, show, and with `--write` put the page into docs/."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace

from benchmarks.doctor import doctor_section
from benchmarks.inspector import inspect_tensors
from benchmarks.lines import measure_lines, section
from benchmarks.measure import FULL, QUICK, latencies, overhead, quiet, start_up
from benchmarks.memory import measure_memory
from benchmarks.models import all_cases
from benchmarks.ops import measure_ops
from benchmarks.profiling import measure_profiling
from benchmarks.report import PAGE, Results, page, screen
from benchmarks.training import TRAINING, training_cases


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="some minutes instead of many; rough numbers")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} in docs/explanation")
    parser.add_argument(
        "--pairs", type=int, help="profiles to compare, above a minute each; 20, or 3 if quick"
    )
    parser.add_argument("--python", action="append", default=[], help="one more Python, for the lines")
    options = parser.parse_args()
    pythons = [sys.executable, *options.python]
    effort = QUICK if options.quick else FULL
    begin = _load()
    quiet()
    steps = []  # first: nnsight replaces `Tensor.backward` for the whole process
    for step in training_cases():
        _tell(step.name)
        steps.append(overhead(step, replace(effort, rounds=effort.rounds // 3 + 1, least=3), TRAINING))
    pairs = options.pairs or (3 if options.quick else 20)
    profiling = measure_profiling(
        replace(effort, rounds=max(7, effort.rounds // 3 + 1), least=3), pairs, _tell
    )
    _tell("memory")
    memory = measure_memory(effort)
    overheads = []
    for case in all_cases():
        _tell(case.name)
        overheads.append(overhead(case, effort))
    _tell("answers on 10,000 modules")
    answers = latencies(effort)
    _tell("looking at tensors")
    inspection = inspect_tensors(effort)
    _tell("ops")
    ops = measure_ops(replace(effort, rounds=effort.rounds // 2 + 1))
    _tell("start-up")
    results = Results(
        effort,
        overheads,
        start_up(effort),
        answers,
        inspection,
        steps,
        ops,
        memory,
        profiling,
        (begin, _load()),
    )
    _tell("lines")
    lines = section([measure_lines(3 if options.quick else 7, each) for each in pythons])
    _tell("the doctor")
    doctor = doctor_section(quick=options.quick)
    print(screen(results), lines, doctor, sep="\n\n")
    if options.write:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(f"{page(results).rstrip()}\n\n{lines.rstrip()}\n\n{doctor}\n", encoding="utf-8")
        _tell(f"wrote {PAGE.name}")


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _tell(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
