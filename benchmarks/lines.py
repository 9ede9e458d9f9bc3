"""`python -m benchmarks.lines`: what a point at a line costs that never stops; layerstep, pdb and debugpy.

Each tool has a process of its own, because no two trace functions share one. Each round takes every variant
once, in a new order; ratios are to the bare steps of the same process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import line_loop
from benchmarks.line_loop import ASKED, CASES, CONDITION, NEVER, line_of
from benchmarks.measure import Spread
from benchmarks.report import PAGE, with_range, write_section
from benchmarks.tables import machine, table

__all__ = ["measure_lines", "section"]

HEADING = "## A point at a line"
PROGRAM = Path(line_loop.__file__)
SECONDS = 180
"""No process takes longer, or something hangs."""

VARIANTS = {
    ("bare", NEVER): "bare, again (noise)",
    ("layerstep", NEVER): "layerstep, a line that is never reached",
    ("layerstep", ASKED): f"layerstep, `if {CONDITION}` at each step",
    ("pdb", NEVER): "pdb, a line that is never reached",
    ("pdb", ASKED): f"pdb, `if {CONDITION}` at each step",
    ("debugpy", NEVER): "debugpy, a line that is never reached",
    ("debugpy", ASKED): f"debugpy, `if {CONDITION}` at each step",
}
_Variant = tuple[str, str]


@dataclass(slots=True)
class LineCosts:
    """What one Python took for a step: for each round and variant, what its process has found."""

    python: str = ""
    torch: str = ""
    rounds: list[dict[_Variant, dict[str, list[float]]]] = field(default_factory=list)
    load: list[float] = field(default_factory=list)

    def ratio(self, variant: _Variant, case: int) -> Spread:
        found = [times[variant] for times in self.rounds]
        return Spread.of(each["seconds"][case] / each["bare"][case] for each in found)

    def added(self, variant: _Variant, case: int) -> float:
        """Seconds that it adds to a step."""
        found = [times[variant] for times in self.rounds]
        return statistics.median(each["seconds"][case] - each["bare"][case] for each in found)


def measure_lines(rounds: int, python: str = sys.executable) -> LineCosts:
    """Run every variant once a round under this Python."""
    order = random.Random(0)
    costs = LineCosts()
    with subprocess.Popen(
        [python, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        for _ in range(rounds):
            times: dict[_Variant, dict[str, list[float]]] = {}
            for tool, point in order.sample(list(VARIANTS), len(VARIANTS)):
                found = _ask(server, tool, point)
                costs.python, costs.torch = found.pop("python"), found.pop("torch")
                times[tool, point] = found
            costs.rounds.append(times)
            costs.load.append(os.getloadavg()[0])
        assert server.stdin is not None
        server.stdin.close()
    return costs


def _ask(server: subprocess.Popen[str], tool: str, point: str) -> dict[str, Any]:
    assert server.stdin is not None and server.stdout is not None
    watch = threading.Timer(SECONDS, server.kill)
    watch.start()
    try:
        server.stdin.write(f"{tool}, {point}\n")
        server.stdin.flush()
        if tool == "debugpy":
            _attend(json.loads(server.stdout.readline())["port"], point)
        found: dict[str, Any] = json.loads(server.stdout.readline() or "{}")
    finally:
        watch.cancel()
    if not found:
        raise RuntimeError(f"{tool} did not come to its end in {SECONDS} s")
    return found


def _attend(port: int, point: str) -> None:
    """The least of the debug adapter protocol: attach, set the point, go on; at the stop, go on again."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as client:
        messages = _messages(client)
        numbers = iter(range(1, 100))

        def send(command: str, **arguments: object) -> None:
            request = {"seq": next(numbers), "type": "request", "command": command, "arguments": arguments}
            body = json.dumps(request)
            client.sendall(f"Content-Length: {len(body)}\r\n\r\n{body}".encode())

        def wait_for(name: str) -> dict[str, Any]:
            return next(each for each in messages if name in (each.get("command"), each.get("event")))

        condition = {"condition": CONDITION} if point == ASKED else {}
        send("initialize", adapterID="benchmark", linesStartAt1=True, pathFormat="path")
        wait_for("initialize")
        send("attach", justMyCode=True)
        wait_for("initialized")
        breakpoints = [{"line": line_of(point), **condition}]
        send("setBreakpoints", source={"path": str(PROGRAM)}, breakpoints=breakpoints)
        wait_for("setBreakpoints")
        send("configurationDone")
        thread = wait_for("stopped")["body"]["threadId"]
        send("continue", threadId=thread)
        wait_for("continue")


def _messages(client: socket.socket) -> Iterator[dict[str, Any]]:
    with client.makefile("rb") as stream:
        while head := stream.readline():
            if head.lower().startswith(b"content-length:"):
                stream.readline()
                yield json.loads(stream.read(int(head.split(b":")[1])))


def section(found: Sequence[LineCosts]) -> str:
    """The tables, for the page."""
    parts = [_WORDS]
    for costs in found:
        for number, case in enumerate(CASES):
            bare = statistics.median(
                each["bare"][number] for times in costs.rounds for each in times.values()
            )
            rows = [
                (
                    name,
                    with_range(costs.ratio(variant, number), 2),
                    f"{costs.added(variant, number) * 1e6:+.0f}",
                )
                for variant, name in VARIANTS.items()
            ]
            parts.append(f"### Python {costs.python}, {case}: {bare * 1e3:.2f} ms bare")
            parts.append(table(("", "CPU time, × bare", "µs per step"), rows))
    loads = [load for costs in found for load in costs.load]
    torches = ", ".join(f"torch {each.torch} on Python {each.python}" for each in found)
    parts.append(
        f"{machine()}; {torches}; debugpy {metadata.version('debugpy')}. Rounds:"
        f" {len(found[0].rounds)}. The load average of the machine was {min(loads):.1f} to {max(loads):.1f}."
        " What the bare steps differ by is noise, and a smaller difference says nothing."
    )
    return "\n\n".join(parts) + "\n"


_WORDS = f"""\
{HEADING}

Training steps with one breakpoint that never stops, at a line of the function that trains. Its line is never
reached, or it is reached at every step with a condition that does not hold. Each variant runs in a process of
its own; each round takes all of them, in a new order. A process warms the models up, takes the fastest of
some bare steps, turns the tool on, and takes the fastest step again, in CPU time of the thread. At its end
the breakpoint does stop once, which proves that the tool was watching. The tables show the median, over the
rounds, of the ratio of the two, and in brackets the range of the middle half.
`python -m benchmarks.lines --write` measures this part alone; `--python` names one more Python to measure."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lines", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--python", action="append", default=[], help="one more Python to measure")
    parser.add_argument("--write", action="store_true", help=f"put the section into {PAGE.name}")
    options = parser.parse_args()
    text = section([measure_lines(options.rounds, python) for python in (sys.executable, *options.python)])
    print(text)
    if options.write:
        write_section(text)


if __name__ == "__main__":
    main()
