"""`python -m benchmarks.lines`: what a point at a line costs that is never reached, beside pdb and debugpy.

Each variant is a process of its own, because a trace function cannot be compared with another in one process.
The variants of a round follow each other in a new order; ratios are to the bare process of the same round.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import PAGE

__all__ = ["HEADING", "measure_lines", "section"]

HEADING = "## A point at a line"
PROGRAM = """\
import gc, statistics, sys, time
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def train(model, opt, data, steps):
    times = []
    for _ in range(steps):
        began = time.process_time()
        x, y = data
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if loss.isnan():
            print("never")
        times.append(time.process_time() - began)
    return statistics.median(times[len(times) // 4 :])


width, depth, steps = map(int, sys.argv[1:4])
model = nn.Sequential(*[m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())])
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(32, width), torch.randn(32, width)
gc.disable()
print("seconds", train(model, opt, data, steps))
"""
POINT = PROGRAM.splitlines().index('            print("never")') + 1
CASES = {
    "16 layers of 16": ("16", "16", "400"),
    "8 layers of 512": ("512", "8", "60"),
}
BARE, LAYERSTEP, PDB, DEBUGPY = (
    "bare",
    "layerstep, `break FILE:LINE`",
    "pdb, `break FILE:LINE`",
    "debugpy, the same",
)


def measure_lines(rounds: int) -> dict[str, dict[str, list[float]]]:
    """CPU seconds of a training step, by case and variant."""
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "loop.py"
        script.write_text(PROGRAM)
        for case, arguments in CASES.items():
            times = found[case] = {BARE: [], LAYERSTEP: [], PDB: [], DEBUGPY: []}
            for _ in range(rounds):
                for name in random.sample(list(times), len(times)):
                    times[name].append(_run(name, script, list(arguments)))
    return found


def _run(name: str, script: Path, arguments: list[str]) -> float:
    python, point = [sys.executable], f"{script}:{POINT}"
    lines = ""
    if name == LAYERSTEP:
        python += ["-m", "layerstep", "run", "--batch", "-e", f"break {point}", "-e", "continue"]
    elif name == PDB:
        python += ["-m", "pdb", "-c", f"break {point}", "-c", "continue"]
        lines = "quit\n"
    elif name == DEBUGPY:
        return _run_debugpy(script, arguments)
    done = subprocess.run(
        [*python, str(script), *arguments],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return _seconds(done.stdout + done.stderr)


def _run_debugpy(script: Path, arguments: list[str]) -> float:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--listen", f"127.0.0.1:{port}", "--wait-for-client"]
    process = subprocess.Popen(
        [sys.executable, "-m", "debugpy", *options, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with _connected(port) as client:
        _attach(client, script)
        output, _ = process.communicate(timeout=300)
    return _seconds(output)


def _connected(port: int) -> socket.socket:
    for _ in range(300):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("debugpy does not listen")


def _attach(client: socket.socket, script: Path) -> None:
    """The least of the debug adapter protocol: attach, one breakpoint, go on."""
    stream = client.makefile("rb")

    def send(number: int, command: str, **arguments: object) -> None:
        body = json.dumps({"seq": number, "type": "request", "command": command, "arguments": arguments})
        client.sendall(f"Content-Length: {len(body)}\r\n\r\n{body}".encode())

    def wait_for(**wanted: object) -> None:
        while True:
            length = 0
            while (line := stream.readline().strip()) or not length:
                length = int(line.split(b":")[1]) if line.lower().startswith(b"content-length") else length
            message = json.loads(stream.read(length))
            if all(message.get(key) == value for key, value in wanted.items()):
                return

    send(1, "initialize", adapterID="benchmark", linesStartAt1=True, pathFormat="path")
    wait_for(type="response", command="initialize")
    send(2, "attach", justMyCode=True)
    wait_for(type="event", event="initialized")
    send(3, "setBreakpoints", source={"path": str(script)}, breakpoints=[{"line": POINT}])
    wait_for(type="response", command="setBreakpoints")
    send(4, "configurationDone")
    wait_for(type="response", command="configurationDone")


def _seconds(output: str) -> float:
    found = [line.split()[1] for line in output.splitlines() if line.startswith("seconds ")]
    if not found:
        raise RuntimeError(f"the program did not end: {output[-400:]}")
    return float(found[0])


def section(results: dict[str, dict[str, list[float]]]) -> str:
    """The tables, for the page."""
    version = ".".join(map(str, sys.version_info[:2]))
    lines = [
        HEADING,
        "",
        f"A training step of an MLP on Python {version}, with a breakpoint at a line of the function that",
        "trains; the line is never reached. CPU time, × the bare process of the same round: median and range",
        "over the rounds. Made by `python -m benchmarks.lines --write`.",
        "",
    ]
    for case, times in results.items():
        bare = statistics.median(times[BARE])
        lines += [f"| {case}, {bare * 1e3:.2f} ms bare | × bare |", "| --- | ---: |"]
        for name, taken in times.items():
            ratios = [one / other for one, other in zip(taken, times[BARE], strict=True)]
            lines.append(
                f"| {name} | {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lines", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"put the section into {PAGE.name}")
    options = parser.parse_args()
    text = section(measure_lines(options.rounds))
    print(text)
    if options.write:
        before, _, rest = PAGE.read_text().partition(HEADING + "\n")
        _, found, after = rest.partition("\n## ")
        PAGE.write_text(before.rstrip() + "\n\n" + text + (found + after if found else ""))


if __name__ == "__main__":
    main()
