"""`python -m benchmarks.sections`: measure one part of the page alone."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from benchmarks.doctor import doctor_section
from benchmarks.history import history_section, measure_history
from benchmarks.inspector import inspect_tensors
from benchmarks.measure import FULL, QUICK, overhead, quiet
from benchmarks.models import all_cases
from benchmarks.report import forward_section, tensor_section, write_section


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sections", description=__doc__)
    parser.add_argument("--forwards", action="store_true", help="what a forward costs")
    parser.add_argument("--tensors", action="store_true", help="what a look at a tensor costs")
    parser.add_argument("--history", action="store_true", help="what a checkpoint at each step costs")
    parser.add_argument("--doctor", action="store_true", help="what the doctor costs")
    parser.add_argument("--quick", action="store_true", help="rough numbers")
    parser.add_argument("--rounds", type=int, help="of forwards")
    parser.add_argument("--write", action="store_true", help="put the sections into the page")
    options = parser.parse_args()
    effort = QUICK if options.quick else FULL
    quiet()
    sections = []
    if options.forwards:
        begin = os.getloadavg()[0]
        rounds = replace(effort, rounds=options.rounds or effort.rounds)
        found = [overhead(case, rounds) for case in all_cases()]
        sections.append(forward_section(found, (begin, os.getloadavg()[0])))
    if options.tensors:
        sections.append(tensor_section(inspect_tensors(effort)))
    if options.history:
        begin = os.getloadavg()[0]
        sections.append(history_section(measure_history(effort), (begin, os.getloadavg()[0])))
    if options.doctor:
        sections.append(doctor_section(quick=options.quick))
    for section in sections:
        print(section, end="\n\n")
        if options.write:
            write_section(section)


if __name__ == "__main__":
    main()
