"""`python -m benchmarks.diagnosis`: run faults and healthy trainings, judge the doctor, write the page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.diagnosis.cases import Fault
from benchmarks.diagnosis.judging import Judged
from benchmarks.diagnosis.page import PAGE, page, row, summary
from benchmarks.diagnosis.running import Task, all_cases, run_all

SEEDS = 3
LEVELS = ("basic", "advanced", "extreme")


def main() -> None:
    options = _options()
    if options.read:
        results = [_judged(line) for file in options.read for line in file.read_text().splitlines()]
    else:
        results = list(_shown(_tasks(options), options.jobs, options.jsonl))
    print(summary(results))
    if options.write or not (options.quick or options.only or options.read):
        PAGE.write_text(page(results), encoding="utf-8")
        print(f"wrote {PAGE.name}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, fewer steps, no other alarms or page")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="cases with this in their name"
    )
    parser.add_argument("--level", action="append", choices=LEVELS, help="extreme if none is given")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--jsonl", type=Path, help="write each run to this file, as a line of JSON")
    parser.add_argument(
        "--read", action="append", type=Path, metavar="FILE", help="show the runs of such a file, run nothing"
    )
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} also for these few runs")
    return parser.parse_args()


def _tasks(options: argparse.Namespace) -> list[Task]:
    tasks = []
    for level in options.level or ["extreme"]:
        for case in all_cases():
            if options.only and not any(part in case.name for part in options.only):
                continue
            seeds = SEEDS if isinstance(case, Fault) else case.seeds
            tasks += [
                (case.name, seed, level, options.quick) for seed in range(1 if options.quick else seeds)
            ]
    return tasks


def _shown(tasks: Sequence[Task], jobs: int, jsonl: Path | None) -> Iterator[Judged]:
    """Run, show a row for each run, keep it in the file."""
    if jsonl is not None:
        jsonl.write_text("")
    for number, one in enumerate(run_all(tasks, jobs), 1):
        print(f"{number:4}/{len(tasks)}  {row(one)}", flush=True)
        if jsonl is not None:
            with jsonl.open("a", encoding="utf-8") as file:
                file.write(json.dumps(one.to_json()) + "\n")
        yield one


def _judged(line: str) -> Judged:
    data = json.loads(line)
    return Judged(**{**data, "expected": tuple(data["expected"])})


if __name__ == "__main__":
    main()
