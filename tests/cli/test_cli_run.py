"""`layerstep run` and `layerstep demo` with pipes: what goes where, in which order, and how it ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import layerstep
import quick_python

SCRIPTS = Path(__file__).parents[1] / "scripts"
OURS = str(Path(layerstep.__file__).parent)
SECONDS = 250
"""No run may take longer; only one that hangs does."""

SMALL = """\
from collections import OrderedDict

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(OrderedDict(fc1=nn.Linear(4, 8), act=nn.Tanh(), fc2=nn.Linear(8, 2)))
"""
"""The beginning of most scripts here. They have no optimizer: that would take a second more to import."""

THREE_TIMES = """\
for number in range(3):
    net(torch.ones(1, 4))
    print("forward", number)
"""
OUTPUT = "forward 0\nforward 1\nforward 2\n"


def layerstep_run(*words: object) -> list[str]:
    return [sys.executable, "-m", "layerstep", *map(str, words)]


def run(
    argv: Sequence[str],
    *,
    typed: str | None = "",
    stdin: int | None = None,
    cwd: Path | None = None,
    fresh: bool = False,
    **env: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command with pipes; `typed` is its whole input, `stdin` an open file instead.

    A pipe never gets escape codes, whatever is run, unless they are asked for. `fresh`: Python itself starts.
    """
    clean = {k: v for k, v in os.environ.items() if k not in ("CI", "PYTHONBREAKPOINT", "TERM")}
    given = {"stdin": stdin} if stdin is not None else {"input": typed}
    env = {**clean, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1", **env}
    if fresh:
        done = subprocess.run(
            argv, **given, capture_output=True, encoding="utf-8", timeout=SECONDS, cwd=cwd, env=env
        )
    else:
        assert argv[0] == sys.executable
        done = quick_python.run(argv[1:], **given, cwd=cwd, env=env)
    if "FORCE_COLOR" not in env:
        assert "\x1b" not in done.stdout + done.stderr
    return done


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(SMALL + text)
        return path

    return write


@contextmanager
def silent_pipe() -> Iterator[int]:
    """The reading end of a pipe that stays open and that nobody feeds."""
    read, write = os.pipe()
    try:
        yield read
    finally:
        os.close(read)
        os.close(write)


def in_order(text: str, *parts: str) -> None:
    """Every part occurs, each one after the one before."""
    place = 0
    for part in parts:
        found = text.find(part, place)
        assert found >= 0, f"{part!r} is not, or not in its place, in:\n{text}"
        place = found + len(part)


def stops(text: str) -> list[str]:
    """The paths at which a run stopped."""
    return re.findall(r"^(\S+)  (?:done|entered)  ", text, re.MULTILINE)


# -- a whole session through a pipe ------------------------------------------------------------


@pytest.mark.long
def test_a_session_through_a_pipe_on_gpt2():
    lines = "break h.1.attn\ncontinue\nwhere\nstats out\nstep\nfinish\nquit\n"
    done = run(layerstep_run("run", SCRIPTS / "gpt2.py"), typed=lines)
    assert done.returncode == 130
    assert done.stdout == "training\n"
    assert stops(done.stderr) == ["transformer.h.1.attn", "transformer.h.1.ln_2", "transformer.h.1"]
    in_order(
        done.stderr,
        "gpt2.py has not started",
        "(layerstep) break h.1.attn\n",
        "pending until a model runs",
        "(layerstep) continue\n",
        "found GPT2LMHeadModel (model)",
        "break 1 is now set at transformer.h.1.attn",
        "transformer.h.1.attn  done  GPT2Attention  forward 1  break 1\n",
        "(layerstep) where\n",
        "→ 0  transformer.h.1.attn  GPT2Attention  done",
        "  1  transformer.h.1  GPT2Block  running",
        "  3  model  GPT2LMHeadModel  running",
        "(layerstep) stats out\n",
        "f32[2, 8, 16] cpu",
        "(layerstep) step\n",
        "transformer.h.1.ln_2  done  LayerNorm",
        "(layerstep) finish\n",
        "transformer.h.1  done  GPT2Block",
        "(layerstep) quit\n",
    )
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_point_in_a_generate_loop_stops_once_per_token():
    done = run(
        layerstep_run(
            "run",
            *("--batch", "-e", "break h.0.attn if not mod.training"),
            *("-e", "commands 1 print out[0].shape[1]; continue", "-e", "continue"),
            SCRIPTS / "gpt2.py",
        )
    )
    assert done.returncode == 0
    assert done.stdout.endswith("4 new tokens\n")
    assert stops(done.stderr) == ["transformer.h.0.attn"] * 4
    in_order(done.stderr, "forward 3  break 1", "$1  3", "forward 4  break 1", "$2  1", "forward 6  break 1")


# -- batch work --------------------------------------------------------------------------------


def test_commands_run_in_the_order_given_and_then_the_run_goes_on_alone(script, tmp_path):
    first = tmp_path / "first.txt"
    first.write_text("# a comment\nbreak fc2\ncommands 2\nprint out.shape[1]\nend\n\ncontinue\n")
    report = tmp_path / "report.jsonl"
    done = run(
        layerstep_run(
            "run",
            *("-e", "break fc1", "-x", first, "-e", "print name", "--batch"),
            *("-e", 'log act "act {out.shape}"', "--json", report, "-e", "continue"),
            script(THREE_TIMES),
        ),
        typed="quit\n",  # --batch asks nobody, so nobody reads this
    )
    assert done.returncode == 0
    assert done.stdout == OUTPUT
    assert stops(done.stderr) == ["fc1", "fc2"], "at the second stop the commands have run out"
    in_order(
        done.stderr,
        "(layerstep) break fc1\n",
        "(layerstep) break fc2\n",
        "(layerstep) commands 2\n",
        "(layerstep) continue\n",
        "fc1  done  Linear",
        "(layerstep) print name\n",
        "$1  fc1\n",
        "(layerstep) log act",
        "(layerstep) continue\n",
        "act [1, 8]",
        "fc2  done  Linear",
        "(break 2) print out.shape[1]",
    )
    assert "comment" not in done.stderr

    documents = [json.loads(line) for line in report.read_text().splitlines()]
    assert all(document["layerstep"] == 2 for document in documents)
    keys = {"layerstep", "kind", "line", "view"}
    assert all(set(d) == (keys | {"stop"} if d["kind"] == "stop" else keys) for d in documents)
    assert [d["kind"] for d in documents if d["kind"] in ("stop", "log")] == ["stop", "log", "stop"]
    assert {document["kind"] for document in documents} == {"answer", "notice", "stop", "log"}
    by_line = {document["line"]: document["view"] for document in documents}
    assert by_line["break fc1"]["view"] == "notice" and by_line["break fc1"]["level"] == "good"
    place, stop = next((d["stop"], d["view"]) for d in documents if d["kind"] == "stop")
    assert (place["path"], place["module"], place["phase"], place["point"]) == ("fc1", "Linear", "exit", 1)
    assert stop["view"] == "fields"
    assert [span["text"] for span in stop["title"]][:3] == ["fc1", "done", "Linear"]
    tensors = {label: value for label, value in stop["items"] if value["view"] == "tensorview"}
    assert tensors["out"]["shape"] == [1, 8] and tensors["out"]["dtype"] == "f32"
    assert next(d["view"]["text"] for d in documents if d["kind"] == "log") == "act [1, 8]"


def test_json_on_stdout_and_the_scripts_own_exit_code_and_input(tmp_path):
    script = tmp_path / "leaves.py"
    script.write_text("import sys\nprint('read', input())\nsys.exit(3)\n")
    done = run(
        layerstep_run("run", "--batch", "--json", "-", "-e", "info breaks", "-e", "break x", script),
        typed="a line of the program's own\n",
    )
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert lines.pop(2) == "read a line of the program's own"
    table, taken, silent = (json.loads(line) for line in lines)
    assert (table["layerstep"], table["kind"], table["line"]) == (2, "answer", "info breaks")
    assert table["view"]["view"] == "table" and table["view"]["rows"] == []
    assert [column["name"] for column in table["view"]["columns"]] == ["no", "what", "where", "hits", "state"]
    assert taken["view"]["view"] == "notice" and taken["view"]["level"] == "good"
    assert silent["kind"] == "notice" and silent["view"]["level"] == "warn"
    assert silent["view"]["text"].startswith("break 1 at x: ")


def test_a_wrong_line_before_the_start_ends_batch_work(tmp_path):
    script = tmp_path / "leaves.py"
    script.write_text("print('it ran')\n")
    given = ("-e", "info breaks", "-e", "break x if out =", "-e", "info breaks")
    done = run(layerstep_run("run", "--batch", "--json", "-", *given, script))
    assert done.returncode == 2
    _, refused = (json.loads(line) for line in done.stdout.splitlines())
    assert refused["line"] == "break x if out ="
    assert refused["view"]["view"] == "notice" and refused["view"]["level"] == "error"


BOOM = """\
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net

    def forward(self, x):
        y = self.net(x)
        raise ValueError("planted fault")


outer = Outer()
try:
    outer(torch.ones(1, 4))
except ValueError as error:
    raise RuntimeError("the last word") from error
"""


def test_the_traceback_of_the_script_has_no_frames_of_ours(script):
    path = script(BOOM)
    given = ("-e", "break net.act", "-e", "continue", "-e", "continue")
    done = run(layerstep_run("run", "--batch", *given, path))
    assert done.returncode == 1
    assert stops(done.stderr) == ["net.act"]
    trace = done.stderr[done.stderr.index("Traceback") :]
    in_order(
        trace,
        f'File "{path}", line ',
        "in <module>\n    outer(torch.ones(1, 4))",
        f'File "{path}", line ',
        'in forward\n    raise ValueError("planted fault")\n',
        "ValueError: planted fault",
        "direct cause",
        f'File "{path}", line ',
        "in <module>\n    raise RuntimeError",
        "RuntimeError: the last word\n",
    )
    assert done.stdout == ""
    assert OURS not in trace


# -- nobody is there ---------------------------------------------------------------------------


def test_without_a_terminal_and_without_commands_nothing_waits(script):
    done = run(layerstep_run("run", script(THREE_TIMES)), stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (0, OUTPUT)
    in_order(done.stderr, "script.py has not started", "found Sequential (net), 4 modules")
    assert stops(done.stderr) == []


@pytest.mark.long
def test_in_ci_a_pipe_that_nobody_feeds_counts_as_the_end_of_input(script):
    with silent_pipe() as stdin:
        done = run(layerstep_run("run", script(THREE_TIMES)), stdin=stdin, CI="1")
    assert (done.returncode, done.stdout) == (0, OUTPUT)


def test_the_end_of_input_before_the_start_starts_the_script_with_the_points_in_place(script):
    lines = 'log fc1 "fc1 gave {out.shape}"\nbreak act if out.isnan().any()\nbreak fc2 if forward == 3'
    done = run(layerstep_run("run", script(THREE_TIMES)), typed=lines)
    assert (done.returncode, done.stdout) == (0, OUTPUT)
    assert done.stderr.count("fc1 gave [1, 8]\n") == 3
    assert stops(done.stderr) == ["fc2"], "it is shown, and as nobody can be asked, the run goes on"


# -- what the user got wrong -------------------------------------------------------------------


def test_points_that_cannot_fire_are_told_with_what_is_near(script):
    lines = (
        *("break fc3", "break act if out.mean() > 1e9", "tbreak type:Liner", "brek fc1"),
        *("break fc1 if out =", "break fc1 if", "where", 'log fc1 "{out"', "continue"),
    )
    done = run(layerstep_run("run", script(THREE_TIMES)), typed="\n".join(lines))
    assert (done.returncode, done.stdout) == (0, OUTPUT)
    text = " ".join(done.stderr.split())
    in_order(
        text,
        "✗ no command or name 'brek'; did you mean break",
        "✗ 'out =' is no expression",
        "✗ an expression is missing",
        "✗ where: nothing has stopped yet; `continue` starts the run",
        "✗ bad template",
        "! break 1 at fc3: pending: no module 'fc3'; did you mean fc2, fc1?",
        "! break 2 at act: reached 3 times, the condition never held",
        "! break 3 at type:Liner: pending: no module is a Liner; there are Linear, Sequential, Tanh",
    )
    assert "Traceback" not in text


def test_a_script_without_any_model(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text("print('no model here')\n")
    done = run(layerstep_run("run", script), typed="break fc\ntree\nstep\nwhere\n")
    assert done.returncode == 0
    assert done.stdout == "no model here\n"
    in_order(
        done.stderr,
        "(layerstep) tree\n✗ no model has run yet; `continue` starts the run",
        "(layerstep) step\n",
        "! break 1 at fc: pending: no model has run yet",
    )
    assert "Traceback" not in done.stderr


# -- the environment ---------------------------------------------------------------------------


def test_switched_off_it_leaves_no_trace(script):
    given = ("-e", "break fc1", "-e", "quit")
    done = run(layerstep_run("run", *given, script(THREE_TIMES)), typed="quit\n", fresh=True, LAYERSTEP="0")
    assert (done.returncode, done.stdout, done.stderr) == (0, OUTPUT, "")


def test_colour_in_a_pipe_is_there_only_if_it_is_forced(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text("print('it has run')\n")
    forced = run(layerstep_run("run", "-e", "help", "-e", "quit", script), FORCE_COLOR="1")
    assert "\x1b[" in forced.stderr
    assert (forced.returncode, forced.stdout) == (130, ""), "quit before the start: nothing has run"


def through_sh(redirection: str, argv: Sequence[str]) -> list[str]:
    return ["sh", "-c", f'exec "$@" {redirection}', "sh", *argv]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk here")
@pytest.mark.long
def test_a_full_disk_is_no_reason_for_the_run_to_end(script):
    given = ("--json", "/dev/full", "-e", "break act", "-e", "continue")
    argv = layerstep_run("run", "--batch", *given, script(THREE_TIMES))
    done = run(through_sh("2>/dev/full", argv), fresh=True)
    assert (done.returncode, done.stdout) == (0, OUTPUT)


@pytest.mark.skipif(sys.platform == "win32", reason="wants a POSIX shell")
@pytest.mark.long
def test_without_a_stderr_stdout_still_is_the_programs_own(script):
    argv = layerstep_run("run", "--batch", "-e", "break act", "-e", "continue", script(THREE_TIMES))
    done = run(through_sh("2>&-", argv), fresh=True)
    assert (done.returncode, done.stdout) == (0, OUTPUT)


@pytest.mark.long
def test_files_are_utf_8_where_the_locale_is_not(script, tmp_path):
    commands, report, transcript = (tmp_path / name for name in ("commands", "report", "transcript"))
    commands.write_text(f"transcript {transcript}\nprint 'é → μ'\n", encoding="utf-8")
    done = run(
        layerstep_run("run", "--batch", "-x", commands, "--json", report, script(THREE_TIMES)),
        fresh=True,
        LC_ALL="C",
        PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0",
    )
    assert (done.returncode, done.stdout) == (0, OUTPUT), done.stderr
    assert "Error" not in done.stderr
    assert "é → μ" in transcript.read_text(encoding="utf-8")
    assert "é → μ" in report.read_text(encoding="utf-8")


OWN_HANDLER = """\
import signal

signal.signal(signal.SIGINT, lambda *_: print("my own handler"))
net(torch.ones(1, 4))
signal.raise_signal(signal.SIGINT)
print("finished")
"""


@pytest.mark.long
def test_the_programs_own_handler_of_ctrl_c_is_still_there_after_detach(script):
    done = run(layerstep_run("run", script(OWN_HANDLER)), typed="break act\ncontinue\ndetach\n")
    assert stops(done.stderr) == ["act"]
    assert (done.returncode, done.stdout) == (0, "my own handler\nfinished\n")


# -- models of all sorts -----------------------------------------------------------------------


def test_two_models_are_named_after_their_variables():
    lines = "break teacher.1\nbreak student.1\nbreak criterion\ncontinue\ncontinue\ncontinue\ninfo models\n"
    done = run(layerstep_run("run", SCRIPTS / "two_models.py"), typed=lines)
    assert done.returncode == 0
    assert done.stdout.count("loss") == 2
    assert stops(done.stderr) == ["1", "student.1", "criterion"]
    found = (
        "found Sequential (teacher)",
        "found Sequential (student)",
        "paths now begin with the model's name",
    )
    in_order(done.stderr, *found)
    table = done.stderr[done.stderr.index("(layerstep) info models") :].splitlines()[1:5]
    assert [row.split()[0] for row in table] == ["name", "teacher", "student", "criterion"]


COMPILED = """\
x = torch.randn(3, 4)
wanted = net(x)
fast = torch.compile(net, backend="eager")
for _ in range(3):
    print("right" if torch.equal(fast(x), wanted) else "wrong")
from torch._dynamo.utils import counters
print(counters["stats"]["unique_graphs"], "graphs")
"""


@pytest.mark.long
def test_a_compiled_model_stops_and_is_compiled_again_afterwards(script):
    lines = "break act\ncontinue\ncontinue\nwhere\ninfo cost\ndelete\ncontinue\n"
    done = run(layerstep_run("run", script(COMPILED)), typed=lines)
    assert done.returncode == 0
    assert done.stdout == "right\nright\nright\n1 graphs\n"
    assert stops(done.stderr) == ["act", "act"]
    in_order(
        done.stderr,
        "act  done  Tanh",
        "compiled model: it runs eagerly while something is armed",
        "act  done  Tanh",
        "fast(x)",
        "stance",
        "deleted 1",
    )


CHILDREN = """\
import multiprocessing
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        with torch.no_grad():
            return net(torch.ones(4))


def work():
    net(torch.ones(1, 4))
    print("the child has run the model", flush=True)


if __name__ == "__main__":
    net(torch.ones(1, 4))
    print(sum(1 for _ in DataLoader(Data(), num_workers=1)), "batches", flush=True)
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    print("exit code", child.exitcode)
    net(torch.ones(1, 4))
"""


def test_workers_and_child_processes_never_stop_or_ask(script):
    given = ("-e", "break act", "-e", "commands 1 continue", "-e", "continue")
    with silent_pipe() as stdin:  # whoever asks, waits for ever
        done = run(layerstep_run("run", *given, script(CHILDREN)), stdin=stdin)
    assert done.returncode == 0
    assert done.stdout == "2 batches\nthe child has run the model\nexit code 0\n"
    assert stops(done.stderr) == ["act", "act"], "only the calls of the program itself"
    assert done.stderr.count("found Sequential") == 1


THREADED = """\
import threading


def work():
    for number in range(3):
        net(torch.ones(1, 4))
        print("thread", number, flush=True)


thread = threading.Thread(target=work)
thread.start()
thread.join()
print("finished")
"""


def test_a_model_called_in_a_thread_stops_there_and_quit_ends_the_program(script):
    lines = "break act\ncontinue\nwhere\nnext\ncontinue\nquit\n"
    done = run(layerstep_run("run", script(THREADED)), typed=lines)
    assert done.returncode == 130
    assert done.stdout == "thread 0\n"
    assert stops(done.stderr) == ["act", "fc2", "act"]
    in_order(done.stderr, "found Sequential (net)", "→ 0  act  Tanh  done", "net(torch.ones(1, 4))")
    assert "Traceback" not in done.stderr


# -- set_trace and the demo --------------------------------------------------------------------


TRACED = """\
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net

    def forward(self, x):
        hidden = self.net(x)
        breakpoint()
        return hidden


breakpoint()
outer = Outer()
outer(torch.ones(1, 4))
print("read", input())
"""


def test_breakpoint_without_a_terminal_goes_on_and_leaves_the_input_alone(script):
    done = run([sys.executable, str(script(TRACED))], typed="quit\n", PYTHONBREAKPOINT="layerstep.set_trace")
    assert done.returncode == 0
    assert done.stdout == "read quit\n"
    assert "there is no terminal to ask at, so the run goes on" in done.stderr
    assert re.search(
        r"^script\.py  set_trace\(\)\n  at  script\.py:\d+  breakpoint\(\)$", done.stderr, re.MULTILINE
    )


def test_breakpoint_under_run_joins_the_session(script):
    done = run(
        layerstep_run("run", script(TRACED)),
        typed="continue\ncontinue\nwhere\nhidden.shape\nquit\n",
        PYTHONBREAKPOINT="layerstep.set_trace",
    )
    assert done.returncode == 130
    in_order(
        done.stderr,
        *("script.py  set_trace()\n", "breakpoint()", "found Outer (outer)"),
        *(
            "Outer.forward()  outer  Outer  set_trace()\n",
            "breakpoint()",
            "→ 0  outer  Outer  running",
            "torch.Size([1, 2])",
        ),
    )


@pytest.mark.long
def test_the_demo_plays_by_itself_without_a_terminal():
    done = run(layerstep_run("demo"), stdin=subprocess.DEVNULL)
    assert done.returncode == 0
    assert re.fullmatch(r"(batch [12]: mean logit -0\.00\d+\n){2}batch 3: mean logit nan\n", done.stdout)
    assert stops(done.stderr)[0] == "blocks.1.norm1"
    assert re.search(r"^  out  f32\[2, 12, 32\] cpu  μ ", done.stderr, re.MULTILINE), "a tensor line"
    stack = ("→ 0  blocks.1.norm1  RMSNorm", "  1  blocks.1  Block", "  2  model  TinyTransformer")
    in_order(done.stderr, *stack)
    assert re.search(r"^→ \d+          split = self\.qkv\(x\)", done.stderr, re.MULTILINE), "a source listing"
