"""The samples in the pages for contributors work as they stand there. `tests/rules` runs that of a rule."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def codes_of(page: str) -> list[str]:
    text = (ROOT / "docs" / "contributing" / f"{page}.md").read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def samples() -> dict[str, str]:
    """The files that the pages tell people to write."""
    pages = ("adding-a-command", "adding-a-rule", "adding-an-export", "adding-a-stop", "tests")
    (norms,), (rule, case), (markdown, of_markdown), (large, changes, rates), (of_norms,) = map(
        codes_of, pages
    )
    return {
        "src/layerstep/commands/norms.py": norms,
        "tests/tensors/test_norms.py": of_norms,
        "src/layerstep/rules/batch_of_one.py": rule,
        "tests/rules/cases/batch_of_one.py": case,
        "src/layerstep/exports/markdown.py": markdown,
        "tests/render/test_markdown.py": of_markdown,
        "src/layerstep/commands/large.py": large,
        "src/layerstep/rates/__init__.py": "",
        "src/layerstep/rates/changes.py": changes,
        "src/layerstep/commands/rates.py": rates,
    }


SAMPLES = samples()
START = """\
import sys
sys.path[:0] = ["tests/render", "tests/tensors", SUPPORT]
import layerstep.commands, layerstep.exports
for package in (layerstep, layerstep.commands, layerstep.exports):
    package.__path__.append(package.__name__.replace("layerstep", "src/layerstep").replace(".", "/"))
import torch
from torch import nn
from layerstep import DebugConsole
from layerstep.demo.model import TinyTransformer
"""
"""A program begins with it whose working directory holds the samples, at their places, and nothing else."""


def printed(folder: Path, code: str) -> str:
    """What a program prints that finds the samples where the files of layerstep are."""
    for name, text in SAMPLES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    program = START.replace("SUPPORT", repr(str(ROOT / "tests" / "support"))) + code
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_command_is_one_file_with_help_completion_and_a_test(tmp_path: Path) -> None:
    screen = printed(
        tmp_path,
        """
from layerstep.frontends.completion import complete
from layerstep.registry import find_command
from layerstep.render.screen import to_text
lines = ["break head", "continue", *find_command("norms").examples]
console = DebugConsole(TinyTransformer().eval(), commands=lines, output=sys.stdout)
console.run(torch.ones(1, 3, dtype=torch.long))
print(to_text(console.execute("help norms")))
print([each.text for each in complete(console.session, "nor")])
print([each.text for each in complete(console.session, "norms --m")])
import test_norms
test_norms.test_norms_puts_the_largest_first()
""",
    )
    assert "✗" not in screen
    assert "norms  [PATH] [--most N] [--largest]" in screen
    assert "['norms'" in screen and "['--most']" in screen


def test_a_new_export_is_one_file_and_a_test(tmp_path: Path) -> None:
    screen = printed(
        tmp_path,
        """
from pathlib import Path
lines = ["break head", "continue", "stats head --params", "export head.md", "print 1", "export no.md"]
console = DebugConsole(TinyTransformer().eval(), commands=lines, output=sys.stdout)
console.run(torch.ones(1, 3, dtype=torch.long))
import test_markdown
test_markdown.test_a_table_comes_back_from_markdown(Path())
""",
    )
    assert "✓ written to head.md" in screen and "✗ no table was shown last" in screen
    written = (tmp_path / "head.md").read_text()
    assert written.startswith("| tensor | shape |") and "head.weight" in written


def test_new_stops_stop_and_are_listed(tmp_path: Path) -> None:
    screen = printed(
        tmp_path,
        """
lines = ["large 10", "continue", "info breaks", "delete 1", "rates", "continue", "where", "continue"]
model = nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with DebugConsole(model, commands=lines, output=sys.stdout):
    for rate in (0.1, 0.1, 0.01):
        optimizer.param_groups[0]["lr"] = rate
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step()
""",
    )
    assert screen.count("the output has 16 elements, over 10") == 1
    assert re.search(r"1 +catch large +\*\* \(3 modules\) +1", screen)
    assert screen.count("learning rate changed") == 1 and "0.1 → 0.01" in screen


@pytest.mark.parametrize("name", [name for name, text in SAMPLES.items() if text])
def test_a_sample_passes_the_linter(name: str) -> None:
    for task in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *task, "--stdin-filename", name, "-"]
        done = subprocess.run(
            ruff, input=SAMPLES[name], capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_the_samples_pass_the_type_checker(tmp_path: Path) -> None:
    """The command `rates` is checked without the types of the folder that it imports."""
    for name in (name for name in SAMPLES if name.startswith("src/")):
        (tmp_path / name.replace("/", "_").replace("__init__", "init")).write_text(SAMPLES[name])
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    options = ["--config-file", "pyproject.toml", "--disable-error-code", "import-not-found"]
    mypy = [sys.executable, "-m", "mypy", *options, *files]
    done = subprocess.run(mypy, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout
