"""`layerstep open`: a core file made in one process is looked at, and run again, in another."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
import torch
from test_cli_run import SCRIPTS, layerstep_run, run

from layerstep.cli import main

NET = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(8, 8)
        self.out = nn.Linear(width, 8)

    def forward(self, x, *, scale):
        hidden = self.fc(self.drop(self.norm(x)))
        hidden = torch.log(hidden + scale)
        return x + self.out(hidden)


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.blocks = nn.ModuleList([Block(8), Block(width)])
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(torch.nan_to_num(x), scale=1.0)
        return self.head(x)


def narrow():
    return Net(width=6)
"""

TRAIN = """\
import sys

import torch
from net import Net

torch.manual_seed(int(sys.argv[1]))
model = Net(width=int(sys.argv[2]))
for step in range(3):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(16, 8))
"""


@pytest.fixture
def folder(tmp_path):
    """Where the model's source is; `elsewhere` below it has none."""
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


def typed(*lines):
    return [word for line in lines for word in ("-e", line)]


def dumped(folder, *lines, seed=0, width=8):
    """The core file that these lines write in a run of the script."""
    script = ["train.py", str(seed), str(width)]
    done = run(layerstep_run("run", "--batch", *typed(*lines, "dump stop.lscore"), *script), cwd=folder)
    assert "written to stop.lscore" in done.stderr, done.stderr
    assert list(folder.glob("*.lscore")) == [folder / "stop.lscore"]
    return folder / "stop.lscore"


def opened(file, *lines, cwd, options=()):
    done = run(layerstep_run("open", file, "--batch", *options, *typed(*lines)), cwd=cwd)
    assert "bug in layerstep" not in done.stderr
    return done


@pytest.fixture(scope="module")
def core_of_block_1(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    (folder / "net.py").write_text(NET)
    (folder / "train.py").write_text(TRAIN)
    return dumped(folder, "break blocks.1", "continue")


@pytest.fixture
def here(folder, monkeypatch, capsys):
    """`layerstep open` in this process, where the source is; the exit code and the text."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "net", raising=False)

    def open_here(*words):
        code = main(["open", *map(str, words), "--batch"])
        sys.modules.pop("net", None)
        out, err = capsys.readouterr()
        assert out == "" and "bug in layerstep" not in err
        return code, err

    return open_here


NAN = ("break blocks.* if out.isnan().any()", "continue")


def test_it_opens_where_the_source_cannot_be_imported(folder):
    file = dumped(folder, *NAN)
    lines = (
        "where",
        "tree",
        "inspect out",
        "stats inp",
        "hist inp",
        "heatmap inp",
        "top inp",
        "list",
        "list blocks.0",
        "up",
        "frame 0",
        "print blocks.0.out.weight.shape, blocks.0.fc.weight.mean()",
        "name, kwargs, inp.shape, out.shape, forward, mod.training",
        "[type(block).__name__ for block in model.blocks]",
        "x.shape, x is inp",
        "anomalies",
        "info breaks",
    )
    done = opened(file, *lines, cwd=folder / "elsewhere", options=["--json", "said.json"])
    assert done.returncode == 0 and done.stdout == ""
    said = [json.loads(line) for line in (folder / "elsewhere" / "said.json").read_text().splitlines()]
    answers = {entry["line"]: entry for entry in said if entry.get("line")}
    assert set(answers) == set(lines)
    text = done.stderr
    assert "✗" not in text, text[text.index("✗") - 100 :]
    assert "stop.lscore  core file" in text and "autocast cpu bfloat16" in text
    assert "net.py:27" in text and "x = block(torch.nan_to_num(x), scale=1.0)" in text  # `list`
    assert "→ 0  blocks." in text and "train.py:10  model(torch.randn(16, 8))" in text  # `where`
    assert "├── blocks  ModuleList" in text and "← here" in text  # `tree`
    assert "['Block', 'Block']" in text and "nan" in text


@pytest.mark.parametrize(
    "stop", [NAN, pytest.param(("break blocks.0.drop", "continue"), marks=pytest.mark.long)]
)
def test_with_the_code_it_runs_again_bit_for_bit(folder, stop):
    """Dropout on, under autocast; the numbers that were drawn are drawn again."""
    file = dumped(folder, *stop)
    done = opened(file, "again", cwd=folder, options=["--model", "net:Net"])
    assert done.returncode == 0
    assert "gave the same output again, bit for bit" in done.stderr, done.stderr
    assert "streams" not in done.stderr


@pytest.mark.long
def test_a_crash_comes_again(folder):
    """The shapes do not fit behind dropout, under autocast; the module around it is run again."""
    file = dumped(folder, "continue", "up", width=6)
    done = opened(file, "where", "list", "frame 0", "hidden.shape", "dump", cwd=folder / "elsewhere")
    text = done.stderr
    assert "Linear(6→8) got [16, 8]" in text, "as it was explained where it happened"
    assert "→ 1  blocks.1  Block  running" in text and "net.py:16" in text
    assert "torch.Size([16, 8])" in text
    assert 'File "net.py", line 16, in forward' in text
    options = ["--model", "net:narrow"]
    done = opened(file, "catch exception in blocks.1.out", "again", "where", "c", cwd=folder, options=options)
    text = " ".join(done.stderr.split())
    assert "blocks.1 raised the same RuntimeError again: mat1 and mat2 shapes" in text
    assert "again:1 module(*args, **kwargs)" in text, "it stopped there"
    assert "streams" not in text


def test_points_and_steps_work_inside(here, core_of_block_1):
    lines = ("break blocks.1.drop", "again", "where", "step", "list", "continue", "where")
    code, text = here(core_of_block_1, "--model", "net.py:Net", *typed(*lines))
    assert code == 0
    assert "blocks.1.drop  done  Dropout  forward 1  break 1" in text
    assert "again:1  module(*args, **kwargs)" in text
    assert "blocks.1.fc  done  Linear" in text
    assert "blocks.1 gave the same output again, bit for bit" in text
    assert text.rindex("train.py:10") > text.rindex("gave the same"), "back at the file's stop"


def test_another_argument_gives_another_output(here, core_of_block_1):
    _, text = here(core_of_block_1, "--model", "net:Net", *typed("again scale=3.0", "again"))
    assert text.index("gave another output") < text.index("gave the same output")


def test_what_would_resume_is_turned_down_in_one_line(here, core_of_block_1):
    resuming = ("continue", "step", "next", "finish", "until blocks.1", "into")
    text = " ".join(here(core_of_block_1, *typed(*resuming, "again", "where"))[1].split())
    assert text.count("this is a core file: nothing can be resumed") == len(resuming)
    assert "a core file has no code to run" in text
    assert "→ 0 blocks.1 Block done" in text, "it is still there"


@pytest.mark.long
def test_quit_and_the_end_of_input_leave_with_0(folder, core_of_block_1):
    file = core_of_block_1
    done = run(layerstep_run("open", file), typed="where\n", cwd=folder)
    assert done.returncode == 0 and "→ 0  blocks.1" in done.stderr
    inside = "break blocks.1.fc\nagain\nquit\n"
    done = run(layerstep_run("open", file, "--model", "net:Net"), typed=inside, cwd=folder)
    assert done.returncode == 0 and "blocks.1.fc  done" in done.stderr


@pytest.mark.long
def test_gpt2_from_a_configuration(folder):
    """A module of a library: its input is a tensor, its weights are Conv1D's, dropout is on."""
    (folder / "made.py").write_text(
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "def make():\n"
        "    small = dict(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2)\n"
        "    return GPT2LMHeadModel(GPT2Config(**small))\n"
    )
    file = folder / "gpt2.lscore"
    lines = ("break h.1.mlp", "continue", f"dump {file}")
    run(layerstep_run("run", "--batch", *typed(*lines), SCRIPTS / "gpt2.py"), cwd=folder)
    done = opened(file, "where", "tree 2", "again", cwd=folder, options=["--model", "made:make"])
    assert "transformer.h.1.mlp gave the same output again, bit for bit" in done.stderr
    assert "modeling_gpt2.py" in done.stderr and "GPT2LMHeadModel" in done.stderr


def test_no_path_of_the_machine_is_in_the_file(folder):
    data = dumped(folder, *NAN).read_bytes()
    assert str(folder).encode() not in data
    assert str(Path(torch.__file__).parent).encode() not in data


# --- wrong use ---


def call(argv, capsys):
    code = main(argv)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("layerstep: ") and err.count("\n") == 1, err
    return code, err


def test_what_is_no_core_file_gets_one_line_and_exit_code_2(folder, monkeypatch, capsys, core_of_block_1):
    from safetensors.torch import save_file

    whole = core_of_block_1.read_bytes()
    monkeypatch.chdir(folder)
    file = folder / "wrong.lscore"
    cases = [whole[:length] for length in (0, 1, 8, 20, 1000, len(whole) // 2, len(whole) - 1)]
    cases += [random.Random(0).randbytes(length) for length in (1, 9, 5000)]
    cases += [whole.replace(b'"version": "1"', b'"version": "2"'), b"import os\n"]
    for data in cases:
        file.write_bytes(data)
        code, err = call(["open", "wrong.lscore"], capsys)
        assert code == 2 and "wrong.lscore" in err
    save_file({"w": torch.ones(2)}, file)
    assert call(["open", "wrong.lscore"], capsys)[0] == 2
    assert "No such file" in call(["open", "nosuch.lscore"], capsys)[1]
    assert "Is a directory" in call(["open", "elsewhere"], capsys)[1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("net", "names no model"),
        ("nosuch:make", "cannot import nosuch: ModuleNotFoundError"),
        ("net:nosuch", "net has no nosuch"),
        ("net:Block", "net:Block raised TypeError"),
        ("net:torch.ones", "raised TypeError"),
        ("net:narrow", "out.weight is [8, 8] in the file and [8, 6] in the code"),
        ("net:torch.nn.Identity", "the model has no blocks.1"),
        ("net:torch.get_num_threads", "gives a int; it should give an nn.Module"),
    ],
)
def test_a_wrong_model_is_named(here, name, said, core_of_block_1):
    code, err = here(core_of_block_1, "--model", name)
    assert code == 2 and err.startswith("layerstep: ") and err.count("\n") == 1
    assert said in err


def test_quit_leaves_with_0(here, core_of_block_1):
    code, text = here(core_of_block_1, *typed("quit", "where"))
    assert code == 0 and "→ 0" not in text


def test_where_a_core_cannot_go_is_said_before_the_run(folder):
    done = run(layerstep_run("run", "--batch", "--dump", "nosuch/x", "train.py", "0", "8"), cwd=folder)
    assert done.returncode == 2
    assert done.stderr == "layerstep: cannot write nosuch/x; No such file or directory\n"


def test_a_run_knows_where_a_core_goes(folder, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "layerstep.program.debug", lambda program, session, *, stay: seen.append(session.prompt.dump_to) or 0
    )
    monkeypatch.chdir(folder)
    assert main(["run", "--batch", "--dump", "elsewhere", "train.py"]) == 0
    assert main(["run", "--batch", "train.py"]) == 0
    assert seen == [Path("elsewhere"), None]
