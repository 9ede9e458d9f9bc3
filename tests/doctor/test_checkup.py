"""`layerstep doctor train.py`: the report, the exit code, the log and the page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

import quick_python

TRAINING = """\
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
if "--scheduler" in sys.argv:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
for step in range(int(sys.argv[1])):
    inputs = torch.randn(32, 8)
    out = model(inputs)
    if "--softmax" in sys.argv:
        out = out.softmax(-1)
    loss = nn.functional.cross_entropy(out, inputs[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done", f"{loss.item():.6f}")
if "--fail" in sys.argv:
    sys.exit(7)
"""


def doctor(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TRAINING)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    return quick_python.run(
        ["-m", "layerstep", "doctor", *words],
        cwd=folder,
        env=environment,
    )


def test_a_healthy_program_runs_as_it_is_and_exits_0(tmp_path: Path) -> None:
    watched = doctor(tmp_path, "--html", "report.html", "train.py", "60")
    bare = quick_python.run(
        ["train.py", "60"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    assert watched.stdout == bare.stdout
    assert watched.returncode == 0 and "nothing is wrong with this training" in watched.stderr
    assert "health 100 of 100 after 60 training steps" in watched.stderr
    page = (tmp_path / "report.html").read_text()
    assert (
        "Nothing is wrong" in page
        and "<svg" in page
        and "http://" not in page.replace("www.w3.org", "")[:400]
    )


def test_the_report_tells_what_the_model_is_made_of(tmp_path: Path) -> None:
    """Also where the model is gone when the program ends, and no hook of the program runs once more."""
    (tmp_path / "own.py").write_text(OWN)
    done = doctor(tmp_path, "--html", "report.html", "own.py", "12")
    assert done.returncode == 0 and done.stdout == "calls 12 hooks 12\n"
    words = " ".join(done.stderr.split())
    assert "parameters 35, 27 trainable" in words and "layers Linear ×3" in words
    assert "not called spare" in words
    assert "first Linear 24 69% 384 89% 8×3" in words and "of one forward" in words
    page = (tmp_path / "report.html").read_text()
    assert "35, 27 trainable" in page and "8×3" in page


OWN = """\
import sys, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 3, bias=False), nn.Linear(3, 1, bias=False)
        self.spare = nn.Linear(3, 2)
        self.spare.requires_grad_(False)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.last(self.first(x))

def main():
    torch.manual_seed(0)
    net, hooks = Net(), []
    net.first.register_forward_hook(lambda *_: hooks.append(1))
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.01)
    for _ in range(int(sys.argv[1])):
        x = torch.randn(8, 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), x[:, :1]).backward()
        optimizer.step()
    print("calls", net.calls, "hooks", len(hooks))

main()
"""


def test_an_error_exits_3_and_steps_end_the_program(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--steps", "25", "--json", "log.jsonl", "train.py", "100000", "--softmax")
    assert done.returncode == 3 and "done" not in done.stdout
    assert "R6 loss-input-is-probability" in done.stderr and "train.py:13" in done.stderr
    assert "layerstep run -e 'doctor on' train.py 100000 --softmax" in " ".join(done.stderr.split())
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[0]["kind"] == "begin" and lines[-1]["kind"] == "end"
    low = next(line for line in lines if line["kind"] == "finding")["evidence"]["lowest log-probability"]
    assert -2.2 < low < -0.5  # of a softmax over probabilities of three classes
    assert next(each["name"] for each in lines if each["kind"] == "finding") == "loss-input-is-probability"
    assert lines[-1]["health"] == 70 and lines[-1]["findings"][0]["where"]["line"] == 13


def test_a_rule_that_is_off_says_nothing(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--off", "R6", "--off", "bad-initial-loss", "-m", "train", "25", "--softmax")
    assert "R6" not in done.stderr and "bad-initial-loss" not in done.stderr
    assert done.returncode == 0


def test_what_is_found_at_the_end_is_shown_in_the_report_alone(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--json", "log.jsonl", "train.py", "60", "--scheduler")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines if line["kind"] == "finding"] == ["scheduler-never-stepped"]
    assert done.stderr.count("R26 scheduler-never-stepped") == 1


def test_the_exit_code_of_the_program_comes_first(tmp_path: Path) -> None:
    assert doctor(tmp_path, "train.py", "12", "--softmax", "--fail").returncode == 7


@pytest.mark.parametrize(
    "words, says",
    [
        ((), "nothing to run"),
        (("absent.py",), "cannot read absent.py"),
        (("--steps", "0", "train.py", "5"), "--steps 0"),
        (("--html", "no/such/page.html", "train.py", "5"), "cannot write no/such/page.html"),
        (("--off", "R6x", "train.py", "5"), "no rule 'R6x'; did you mean R6?"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = doctor(tmp_path, *words)
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_killed_run_leaves_a_readable_log(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    log = tmp_path / "log.jsonl"
    run = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "layerstep",
            "doctor",
            "--json",
            str(log),
            "train.py",
            "10000000",
            "--softmax",
        ],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 100
        while time.monotonic() < end and (not log.exists() or log.read_text().count('"step"') < 8):
            time.sleep(0.1)
    finally:
        run.send_signal(signal.SIGKILL)
        killed = datetime.now(UTC)
        run.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"begin", "finding", "step"} <= {line["kind"] for line in lines}
    steps = [line["step"] for line in lines if line["kind"] == "step"]
    assert steps == sorted(steps) and len(steps) >= 3
    assert abs((killed - datetime.fromisoformat(lines[-1]["time"])).total_seconds()) < 1
