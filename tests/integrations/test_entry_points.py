"""Packages of other people, in an environment of its own: one is built and installed, others are broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BROKEN = """
from layerstep.registry import command

@command("half", group="look", args=())
def half(session, given):
    "Half of a plugin."

import nosuch_library_at_all
"""
FAILING = """
from layerstep.doctor.rule import Rule
from layerstep.registry import export, rule, sink
from layerstep.sinks.sink import Sink

@export(".odd")
def write(view, path):
    raise KeyError("oh")

@rule("ODD1", "never-made", severity="info", cost="always")
class NeverMade(Rule):
    "It cannot be made."
    def __init__(self):
        raise ValueError("no\\nway")

@sink("unwilling")
class Unwilling(Sink):
    def __init__(self, where):
        raise ValueError("not\\ntoday")
"""
TRAINING = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(8):
    loss = nn.functional.cross_entropy(model(torch.randn(1, 4)), torch.tensor([1]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained")
"""


class Environment:
    """A Python with the packages of this one, and room for more."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True)
        self.python = folder / "env" / "bin" / "python"
        (self.packages,) = (folder / "env" / "lib").glob("python*/site-packages")
        ours = sysconfig.get_path("purelib")
        (self.packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
        (folder / "train.py").write_text(TRAINING)

    def install(self, distribution: Path) -> None:
        options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--no-cache-dir"]
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(self.packages)]
        subprocess.run([*command, str(distribution)], check=True, timeout=250)

    def add(self, name: str, text: str, groups: str = "commands") -> None:
        """Write what an installation leaves."""
        module = name.replace("-", "_")
        (self.packages / f"{module}.py").write_text(text)
        info = self.packages / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        points = "".join(f"[layerstep.{group}]\n{name} = {module}\n" for group in groups.split())
        (info / "entry_points.txt").write_text(points)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "CI": "", "COLUMNS": "200", "PYTHONWARNINGS": "ignore"}
        command = [str(self.python), *words]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=250,
            stdin=subprocess.DEVNULL,
        )

    def debugged(self, *lines: str) -> str:
        """What the debugger says to these lines at a stop in the model."""
        given = [word for line in ("break 0", "continue", *lines) for word in ("-e", line)]
        done = self.run("-m", "layerstep", "run", "--batch", *given, "train.py")
        assert "trained" in done.stdout, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("plugins"))
    made.install(ROOT / "examples" / "plugin")
    made.add("layerstep-broken", BROKEN, "commands sinks")
    made.add("layerstep-failing", FAILING, "exports rules sinks")
    return made


pytestmark = pytest.mark.xdist_group("entry_points")


def test_commands_and_exports_of_a_package(environment: Environment) -> None:
    said = environment.debugged(
        "help norms", "norms --largest --most 2", "export a.md", "norms --wrong", "norms", "export a.odd"
    )
    assert "norms  [PATH] [--most N] [--largest]" in said and "from     layerstep-norms" in said
    assert "no option --wrong" in said
    rows = (environment.folder / "a.md").read_text().splitlines()
    assert rows[:2] == ["| parameter | norm |", "| --- | --: |"] and len(rows) == 4
    assert "the export .odd of layerstep-failing failed: KeyError: 'oh'" in said
    assert "List the norm of every parameter." in said


def test_a_broken_package_is_one_line_and_left_out_whole(environment: Environment) -> None:
    said = environment.debugged("tree", "help half")
    told = "the plugin layerstep-broken of layerstep-broken is left out: ModuleNotFoundError: No module named"
    assert said.count(told) == 1
    assert "Half of a plugin" not in said and "in_features=4" in said


def test_rules_of_a_package(environment: Environment) -> None:
    done = environment.run("-m", "layerstep", "doctor", "train.py")
    assert "trained" in done.stdout and "Traceback" not in done.stderr, done.stderr
    assert "every batch has one sample" in done.stderr
    assert done.stderr.count("the rule never-made of layerstep-failing is left out: ValueError: no\n") == 1
    said = environment.debugged("explain batch-of-one")
    assert "raise the batch size" in said and "layerstep-norms" in said


def test_sinks_of_a_package(environment: Environment) -> None:
    lines = ("-e", "grad record", "-e", "continue", "train.py")
    done = environment.run("-m", "layerstep", "run", "--batch", "--sink", "lines=a.jsonl", *lines)
    assert "trained" in done.stdout and "8 records are in lines" in done.stderr, done.stderr
    rows = [json.loads(line) for line in (environment.folder / "a.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 9)) and rows[0]["gradient_norm/2"] > 0
    assert done.stderr.count("the plugin layerstep-broken of layerstep-broken is left out") >= 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lines", "lines needs a place; lines=FILE"),
        ("unwilling", "the sink unwilling of layerstep-failing failed: ValueError: not\n"),
        ("half", "no sink 'half'; there are lines, mlflow"),
    ],
)
def test_a_sink_that_cannot_be_made_is_one_line(environment: Environment, name: str, said: str) -> None:
    done = environment.run("-m", "layerstep", "run", "--batch", "--sink", name, "train.py")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_completion_and_reference_know_it(environment: Environment) -> None:
    code = (
        "import io; from torch import nn; from layerstep import DebugConsole\n"
        "from layerstep.frontends.completion import complete\n"
        "session = DebugConsole(nn.Sequential(nn.Linear(1, 1)), output=io.StringIO()).session\n"
        "for line in ('nor', 'norms --', 'export a.', 'explain NORMS'):\n"
        "    print(line, [each.text for each in complete(session, line)])\n"
    )
    done = environment.run("-c", code)
    assert done.returncode == 0, done.stderr
    first, options, _, rules = done.stdout.splitlines()
    assert "'norms'" in first and "--most" in options and "--largest" in options and "NORMS1" in rules
    done = environment.run("-m", "layerstep.reference", "layerstep-norms")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# layerstep-norms\n\n## Commands\n\n### `norms`\n")
    for text in (
        "norms [PATH] [--most N] [--largest]",
        "NORMS1 batch-of-one",
        "### `.md`",
        "norms blocks.0",
        "`--sink lines=FILE`",
    ):
        assert text in done.stdout
    assert "`step`" not in done.stdout
    wrong = environment.run("-m", "layerstep.reference", "layerstep-broken")
    assert wrong.returncode == 2 and len(wrong.stderr.splitlines()) == 1
    assert "is left out: ModuleNotFoundError" in wrong.stderr
