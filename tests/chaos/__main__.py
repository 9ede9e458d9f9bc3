"""Chaos: random programs, random commands at random stops.

    python tests/chaos --commands 20000        # as many as it takes, from seed 0
    python tests/chaos --seed 17               # one program, with the lines that were typed

A worker runs the seeds one after another. If it dies or hangs, that seed is named, and a new worker goes on
with the next one.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SECONDS = 120
"""Longer than this is a hang: a program with forty lines takes about one second."""


def work(first: int, most: int) -> None:
    """Run seeds until the reader goes away; a line of JSON each."""
    sys.path[:0] = [str(HERE), str(HERE.parent / "support")]
    from trial import try_seed

    for seed in range(first, first + 100_000):
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        print(json.dumps({"begun": seed}), flush=True)
        print(json.dumps(asdict(try_seed(seed, most))), flush=True)


def trials(first: int, most: int) -> Iterator[dict[str, Any]]:
    """What came of each seed, deaths and hangs included."""
    while True:
        begun = first
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
            env = {
                **os.environ,
                "LAYERSTEP_CONFIG": f"{folder}/config.toml",
                "LAYERSTEP_STATE": f"{folder}/state",
                # A thread learns of `set_num_threads` at its first parallel kernel, which may be one of ours;
                # up to then OpenMP takes its own number, and another number gives other last digits.
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, __file__, "--work", str(first), "--most", str(most)]
            worker = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder, env=env
            )
            assert worker.stdout is not None
            try:
                for line in worker.stdout:
                    said = json.loads(line)
                    if "begun" in said:
                        begun = said["begun"]
                    else:
                        yield said
            finally:
                worker.kill()
                code = worker.wait()
            errors.seek(0)
            fault = f"the process ended with {code}: {errors.read()[-3000:]}"
            yield {"seed": begun, "lines": 0, "faults": [fault], "typed": []}
        first = begun + 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commands", type=int, default=20_000)
    parser.add_argument("--programs", type=int, help="end after so many programs, if that is earlier")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--most", type=int, default=40, help="lines for one program")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work is not None:
        work(chosen.work, chosen.most)
        return 0
    programs = lines = bad = 0
    for trial in trials(chosen.first if chosen.seed is None else chosen.seed, chosen.most):
        programs, lines = programs + 1, lines + trial["lines"]
        if trial["faults"]:
            bad += 1
            print(f"seed {trial['seed']}:", *trial["faults"], sep="\n    ", flush=True)
        if chosen.seed is not None:
            print(*trial["typed"], sep="\n")
            break
        if lines >= chosen.commands or programs == chosen.programs:
            break
    print(f"{programs} programs, {lines} commands: {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
