"""Lines as people type them: too long, nested, with comments and questions, in the words of other tools."""

from __future__ import annotations

import io
import random
import re
import sys

import pytest
import torch
from torch import nn

from layerstep import DebugConsole
from layerstep.cli import main
from layerstep.errors import UserError
from layerstep.frontends.completion import complete
from layerstep.line_syntax import without_comment
from layerstep.module_paths.globs import Glob, _as_regex, _States
from layerstep.render.screen import to_text
from layerstep.wrong_lines import check_lines
from play import _as_main


def at_a_stop(*lines: str, model: nn.Module | None = None, point: str = "break **") -> str:
    model, out = model or nn.Linear(4, 4), io.StringIO()
    text = "".join(f"{line}\n" for line in lines)
    with DebugConsole(model, input=io.StringIO(text), output=out) as console:
        console.execute(point)
        model(torch.ones(2, 4))
    return " ".join(out.getvalue().split())


def answered(line: str, *before: str) -> str:
    console = DebugConsole(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), output=io.StringIO())
    for each in before:
        console.execute(each)
    view = console.execute(line)
    return to_text(view, width=200) if view is not None else ""


# --- lines that cannot be read ---


@pytest.mark.parametrize(
    "line",
    [
        'ops "',
        "1+" * 4000 + "1",
        "(" * 900 + ")" * 900,
        "-" * 9000 + "1",
        "intoa " + "a " * 2000,
        "x" * 50_000,
        "stats " + "x " * 4000,
        "compare " + "a " * 4000,
        "again " + "a " * 4000,
        "save-tensor a" + " " * 9000 + 'b"c',
        "break " + "**." * 2000 + "x",
        "break " + "*a" * 2000,
        "break " + "|".join(["**"] * 3000),
        "dump a\0b",
        "source " + "x" * 4000,
        "transcript " + "x" * 4000,
        "export " + "x" * 4000 + ".json",
    ],
    ids=lambda line: line[:12],
)
def test_a_line_that_cannot_be_read_is_one_line_of_answer(line: str) -> None:
    said = at_a_stop(line, "p 41 + 1")
    assert "a bug in layerstep" not in said and "the prompt failed" not in said
    assert "✗" in said and said.endswith("42"), "the prompt goes on"
    assert len(said) < 12_000, "and the line is not thrown back whole"


class Vmapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(self.inner)(x)


@pytest.mark.parametrize(
    "line", ["shadow fp64", "flops", "again", "stability", "ops", "stats out", "why out"]
)
def test_inside_a_transform_a_command_answers_or_says_why_not(line: str) -> None:
    said = at_a_stop(line, "p 41 + 1", model=Vmapped(), point="break inner")
    assert "a bug in layerstep" not in said and said.endswith("42")


# --- globs ---


def test_the_two_ways_of_matching_agree() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        pieces = rng.choices(["a", "b", "ab", "*", "**", "?", "[ab]", "[!a]"], k=rng.randint(1, 4))
        text = rng.choice(["", "**."]) + ".".join(
            "".join(rng.choices(pieces, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 3))
        )
        glob = Glob(text)
        path = ".".join("".join(rng.choices("abc", k=rng.randint(1, 3))) for _ in range(rng.randint(1, 4)))
        regex = re.compile(rf"(?:^|(?<=\.)){''.join(map(_as_regex, glob._pieces))}$")
        if "**." not in re.sub(r"(^|\.)\*\*\.", "", text):  # inside of a segment it is read otherwise
            assert _States(glob._pieces).fits(path) == bool(regex.search(path)), (text, path)


@pytest.mark.parametrize("text", ["*a" * 40, "**a" * 40, "**." * 40 + "x", "*a*." * 30 + "x"])
def test_a_glob_of_many_wildcards_takes_no_time_to_fail(text: str) -> None:
    path = ".".join(["a" * 30] * 20) + "b"
    assert not Glob(text).search(path)
    assert Glob("*a" * 20).search("a" * 30) and Glob("**.a.**.a.**.a").search("x.a.y.a.z.z.a")


def test_completion_of_many_letters_takes_no_time() -> None:
    model = nn.Sequential()
    model.add_module("a" * 60 + "b", nn.Linear(1, 1))
    session = DebugConsole(model, output=io.StringIO()).session
    assert complete(session, "break " + "a" * 40 + "c") == []
    assert [found.text for found in complete(session, "break " + "aab")] == ["a" * 60 + "b"]
    assert complete(session, "break " + "a" * 100_000) == []


# --- comments, questions, results ---


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("x # note", "x"),
        ("# note", ""),
        ('x "a # b" # note', 'x "a # b"'),
        ("x if out['#'] # note", "x if out['#']"),
        ("a#b", "a#b"),
        ('"\\" # still" # note', '"\\" # still"'),
        ("1 # a\nstats out # b\nend", "1\nstats out\nend"),
    ],
)
def test_a_comment_ends_a_line(text: str, left: str) -> None:
    assert without_comment(text) == left


def test_a_comment_behind_a_command() -> None:
    assert answered("break 0 # the first one") == "✓ break 1 at 0"
    assert "runs no commands" not in answered("commands 1 # note\nstats out\nend", "break 0")
    assert answered("print '# no note' # note") == "$1  # no note"


@pytest.mark.parametrize("line", ["? break", "break?", "help break", "?break", "b?", "break ?"])
def test_a_question_about_a_command(line: str) -> None:
    assert answered(line).startswith("break  [WHERE |")


def test_other_questions() -> None:
    assert "run" in answered("?").splitlines()[0]
    assert "Linear(in_features=2" in answered("model.0?")
    assert "path   0" in answered("model.0?")
    assert answered("x?", "x = 41 + 1").split()[:4] == ["x", "int", "value", "42"]
    assert "no command or name 'nosuch'" in answered("nosuch?")
    assert "untouched" in answered("perturbed?")


def test_results_by_their_signs() -> None:
    before = ("40 + 2", "'two'", "torch.ones(3)")
    assert answered("$.shape", *before) == "$4  torch.Size([3])"
    assert answered("$$", *before) == "$4  two"
    assert answered("$$2 + 1", *before) == "$4  43"
    assert answered("max($1, $$2)", *before) == "$4  42"
    assert answered("'$'", *before) == "$4  $"
    assert "no such result yet" in answered("$")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("_", "`$`"),
        ("%timeit out", "`profile 5`"),
        ("%%time", "`profile 5`"),
        ("%whos", "`info locals`"),
        ("!ls -l", "os.system('ls -l')"),
        ("%cd x", "os.system('cd x')"),
        ("ptype x", "`inspect X`"),
        ("stepout", "`finish`"),
        ("%frobnicate", "`help`"),
    ],
)
def test_a_word_of_another_tool_is_answered_by_ours(line: str, named: str) -> None:
    assert named in answered(line)


def test_a_name_of_the_program_is_no_habit() -> None:
    assert answered("_ + 1", "_ = 41") == "$1  42"
    assert answered("run", "run = 3") == "$1  3"


# --- the command line ---

SCRIPT = """
import sys, torch
from torch import nn
model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
model(torch.ones(1, 2))
print("ran", *sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


@pytest.fixture
def run(script, monkeypatch, capsys):
    """The command line in this process: its exit code, stdout and stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        with _as_main():
            code = main(words)
        return code, *capsys.readouterr()

    return call


def test_a_script_alone_is_run(script: str, run) -> None:
    assert run(script, "--batch", "x")[:2] == (0, "ran --batch x\n")


def test_options_before_a_script_are_those_of_run(script: str, run) -> None:
    code, out, err = run("--batch", "-e", "break 0", script, "x")
    assert (code, out) == (0, "ran x\n") and "break 1 is now set at 0" in err


def test_a_line_that_means_nothing_ends_the_command_line(script: str, capsys) -> None:
    assert main(["run", "--batch", "-e", "brek 0", script]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "did you mean break" in err


@pytest.mark.parametrize(
    "line", ["break 0", "b 0", "x = 3", "!x", "if x:\n  y", "print x", "out", "help?", "# x"]
)
def test_lines_that_may_mean_something(line: str) -> None:
    check_lines([line])


def test_an_alias_of_the_lines_themselves() -> None:
    check_lines(["alias zz = stats out", "zz now"])
    with pytest.raises(UserError, match="zz now"):
        check_lines(["zz now"])


def test_a_wrong_argument_before_the_run_in_batch(script: str, run) -> None:
    code, out, err = run("run", "--batch", "-e", "break /[/", "-e", "break 0", script)
    assert (code, out) == (2, "") and "bad regular expression" in err


def test_a_point_that_matches_nothing_says_so_when_the_model_is_found(script: str, run) -> None:
    code, out, err = run("run", "--batch", "-e", "break nosuch", script)
    assert (code, out) == (2, "ran\n")
    found, said = err.index("found Sequential"), err.index("break 1 waits: no module 'nosuch'")
    assert found < said < err.index("never fired" if "never fired" in err else "pending: no module")


def test_python_is_no_file_of_commands(script: str, capsys) -> None:
    assert "`layerstep run train.py`" in answered("source train.py")
    assert main(["run", "-x", script, script]) == 2
    assert "train.py is Python, not a file of commands" in capsys.readouterr().err


class _Keyboard(io.StringIO):
    """A stream that says it is a terminal: its end is Ctrl-D."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "typed, says",
    [
        ("", "Ctrl-D: detached; the run goes on without stops"),
        ("interact\n1 + 1\n", "Ctrl-D: `interact` ends"),
    ],
)
def test_ctrl_d_says_what_it_does(typed: str, says: str) -> None:
    screen, model = io.StringIO(), nn.Linear(2, 2)
    console = DebugConsole(model, input=_Keyboard(typed), output=screen)
    console.breakpoint("Linear")
    console.run(torch.ones(1, 2))
    assert says in screen.getvalue()


@pytest.mark.parametrize("is_compiled", [False, True])
def test_only_a_program_that_compiles_is_told_that_compiled_code_runs_eagerly(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    model = nn.Sequential(nn.Linear(2, 2))
    called = torch.compile(model, backend="eager") if is_compiled else model
    screen = io.StringIO()
    console = DebugConsole(called, commands=["break 0", "continue", "stepi", "info cost"], output=screen)
    console.run(torch.ones(1, 2))
    assert ("it runs eagerly" in screen.getvalue()) is is_compiled
    assert ("torch.compile runs eagerly" in screen.getvalue()) is is_compiled
