"""Ctrl-C on a real terminal reaches the worker processes too: they survive each one that stops the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_terminal import Open, open_terminal  # noqa: F401 - a fixture

pytestmark = [
    pytest.mark.xdist_group("terminal"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

LOADER = """\
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((4,), float(os.getpid()))


def main():
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
    {before_the_workers}
    loader = DataLoader(Rows(), num_workers=2, multiprocessing_context=sys.argv[1], persistent_workers=True)
    rows = iter(loader)
    first = {int(next(rows)[0, 0]) for _ in range(6)}
    while True:
        row = next(rows)
        net(row)
        print("batch", "of a new worker" if int(row[0, 0]) not in first else "of the same", flush=True)


if __name__ == "__main__":
    main()
"""

POOL = """\
import multiprocessing
import os
import time

import torch
from torch import nn


def square(number):
    time.sleep(0.01)
    return number * number


def forever():
    while True:
        time.sleep(0.01)


if __name__ == "__main__":
    net = nn.Linear(1, 1)
    alone = multiprocessing.Process(target=forever)
    alone.start()
    with multiprocessing.Pool(2) as pool:
        pids = {worker.pid for worker in pool._pool}
        try:
            for number, _ in enumerate(pool.imap(square, range(1_000_000))):
                if number < 20:
                    net(torch.ones(1))
                same = {worker.pid for worker in pool._pool} == pids and alone.is_alive()
                print("batch", "of the same" if same else "of a new worker", flush=True)
                if number == 20:
                    print("no model any more")
        finally:
            alone.join()  # which has its Ctrl-C too, or this would wait for ever
            print("all have ended")
"""


def play(terminal, times: int = 2) -> None:
    """Stop by Ctrl-C, cancel a line by Ctrl-C, go on; the workers are the same."""
    for _ in range(times):
        terminal.until("batch of the same")
        terminal.child.sendintr()
        stop = terminal.until_prompt()
        assert "stopping at the next module" in stop and "of a new worker" not in stop
        terminal.keys("""__import__("os").write(2, b"bu" + b"sy") and sum(1 for _ in iter(int, 1))\r""")
        terminal.until("busy")
        terminal.child.sendintr()
        assert "! interrupted" in terminal.until_prompt()
        terminal.keys("continue\r")
        for _ in range(6):
            assert "new" not in terminal.until("batch of (the same|a new worker)")


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_of_a_loader_survive_each_stop(open_terminal: Open, tmp_path: Path, start: str):  # noqa: F811
    path = tmp_path / "train.py"
    path.write_text(LOADER.replace("{before_the_workers}", "pass"))
    terminal = open_terminal("run", path, start)
    terminal.until_prompt()
    terminal.keys("continue\r")
    play(terminal)
    # detached, Ctrl-C is the program's
    terminal.child.sendintr()
    terminal.until_prompt()
    terminal.keys("detach\r")
    terminal.until("batch of the same")
    terminal.child.sendintr()
    code, rest = terminal.end()
    assert code == 130 and "KeyboardInterrupt" in rest


@pytest.mark.long
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_that_start_after_attach_survive(open_terminal: Open, tmp_path: Path, start: str):  # noqa: F811
    path = tmp_path / "train.py"
    text = "import layerstep\n" + LOADER.replace("{before_the_workers}", "layerstep.attach(net)")
    path.write_text(text)
    terminal = open_terminal(path, start, python=True)
    play(terminal, times=1)
    terminal.child.sendintr()
    terminal.until_prompt()
    terminal.keys("quit\r")
    assert terminal.end()[0] == 130


@pytest.mark.long
def test_processes_of_the_program_survive_and_end_with_it(open_terminal: Open, tmp_path: Path):  # noqa: F811
    path = tmp_path / "train.py"
    path.write_text(POOL)
    terminal = open_terminal("run", path)
    terminal.until_prompt()
    terminal.keys("continue\r")
    play(terminal, times=1)
    terminal.until("no model any more")
    for _ in range(20):  # two in quick succession, however slow this machine is
        terminal.child.sendintr()
        if terminal.child.expect(["stopping at the next module", "all have ended"]) == 1:
            break
    code, rest = terminal.end()
    assert code == 130 and "KeyboardInterrupt" in rest
