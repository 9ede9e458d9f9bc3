"""`python -m benchmarks.trackers`: what handing records to a tracker adds to a training step."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.measure import Spread, quiet
from benchmarks.report import PAGE, with_range, write_section
from benchmarks.tables import machine, table
from benchmarks.training import Stepper, TrainingCase, training_cases
from benchmarks.variants import attached, new_session, say
from layerstep.sinks.opening import close_sinks, open_sinks

HEADING = "## Trackers"
LINES = ("record **", "grad record")
SINKS = ("", "tensorboard", "mlflow", "wandb")
"""The first records and hands nothing on."""
WARM_UP = 3
_SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Answers(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        info = {"run_id": "1", "artifact_uri": "mlflow-artifacts:/0/1/artifacts"}
        told = json.dumps({"experiment": {"experiment_id": "0"}, "run": {"info": info}}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(told))); self.end_headers()
        self.wfile.write(told)
    do_GET = do_PUT = do_POST
    def log_message(self, *args): pass
server = HTTPServer(("127.0.0.1", 0), Answers)
print(server.server_port, flush=True)
server.serve_forever()
"""


@dataclass(slots=True)
class TrackerCosts:
    """Seconds of a step by the clock and in the thread of the program, a value for each round."""

    case: TrainingCase
    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, taken: dict[str, list[float]], name: str) -> Spread:
        return Spread.of(one / bare for one, bare in zip(taken[name], taken["bare"], strict=True))


@contextlib.contextmanager
def _server() -> Iterator[str]:
    """What answers as MLflow does, in a process of its own."""
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def _steps(case: TrainingCase, count: int) -> tuple[float, float]:
    """The median of some steps: by the clock, and of processor time in this thread."""
    stepper = Stepper(case.model)
    wall, cpu = [], []
    for number in range(WARM_UP + count):
        thread, clock = time.thread_time(), time.perf_counter()
        stepper.run(case)
        if number >= WARM_UP:
            wall.append(time.perf_counter() - clock)
            cpu.append(time.thread_time() - thread)
    return Spread.of(wall).median, Spread.of(cpu).median


def _recorded(case: TrainingCase, count: int, sinks: Sequence[str]) -> tuple[float, float]:
    session = new_session()
    session.add_model(case.model)
    open_sinks(session, sinks)
    with attached(session, discover=False):
        for line in LINES:
            say(session, line)
        found = _steps(case, count)
    close_sinks(session)
    return found


def measure_trackers(rounds: int, steps: int) -> list[TrackerCosts]:
    """All trackers on each model, once a round."""
    found = []
    with tempfile.TemporaryDirectory() as folder, _server() as server:
        os.environ.update(WANDB_MODE="offline", WANDB_DIR=folder, WANDB_SILENT="true")
        where = {"tensorboard": f"tensorboard={folder}/runs", "mlflow": f"mlflow={server}"}
        for case in training_cases():
            costs = TrackerCosts(case)
            for _ in range(rounds):
                taken = {"bare": _steps(case, steps)}
                for name in SINKS:
                    taken[name] = _recorded(case, steps, [where.get(name, name)] if name else [])
                for name, (wall, cpu) in taken.items():
                    costs.wall.setdefault(name, []).append(wall)
                    costs.cpu.setdefault(name, []).append(cpu)
            found.append(costs)
    return found


def section(found: Sequence[TrackerCosts]) -> str:
    """The tables, for the page."""
    parts = [_WORDS]
    for costs in found:
        bare = Spread.of(costs.wall["bare"]).median * 1e3
        rows = [
            (
                f"handed to {name}" if name else "recorded, handed to none",
                with_range(costs.ratio(costs.cpu, name), 2),
                with_range(costs.ratio(costs.wall, name), 2),
            )
            for name in SINKS
        ]
        head = (f"{costs.case.name}, {bare:.1f} ms", "CPU of the thread", "by the clock")
        parts.append(table(head, rows))
    rounds = len(found[0].wall["bare"])
    load = f"The load average of the machine was {os.getloadavg()[1]:.1f}: much of it is noise by the clock."
    return "\n\n".join(parts) + f"\n\n{machine()}. Rounds: {rounds}. {load}\n"


_WORDS = f"""\
{HEADING}

A training step while `record **` and `grad record` measure every layer, against the bare step: first with no
tracker, then with one that gets all of it. The steps follow each other at once. In the thread of the program
handing on costs an entry in a list; by the clock, the thread of the tracker also takes turns with it. The
server for MLflow is a small one that answers at once; W&B writes offline. The table shows medians, and in
brackets the range of the middle half. `python -m benchmarks.trackers --write` measures this part alone."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trackers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--write", action="store_true", help=f"put the section into {PAGE.name}")
    options = parser.parse_args()
    quiet()
    text = section(measure_trackers(options.rounds, options.steps))
    print(text)
    if options.write:
        write_section(text)


if __name__ == "__main__":
    main()
