"""Points and steps at lines, on whole programs: what the screen says, and that the program is not changed."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent

import pytest
import torch

import quick_python
from layerstep import DebugConsole
from layerstep.frontends.choose import open_session
from layerstep.frontends.completion import complete
from layerstep.program import Program, Stay, debug
from layerstep.source_lines.watcher import SourceLines
from play import play, script_named

LOOP_FILE = script_named("loop")


@pytest.fixture(autouse=True)
def _no_tracer_left() -> Iterator[None]:
    before = sys.gettrace(), threading.gettrace()
    yield
    assert (sys.gettrace(), threading.gettrace()) == before


def played(folder: Path, source: str, *lines: str, name: str = "prog.py") -> str:
    """The screen of a program, typed at until the lines run out."""
    file = folder / name
    file.write_text(dedent(source))
    return play(file, lines, width=200)[0]


def stops(screen: str) -> list[str]:
    """Where the run stood, in order: `prog.py:3`."""
    return [line.split()[1] for line in screen.splitlines() if line.startswith("  at ")]


LOOP = """\
    def double(x):
        y = x * 2
        return y

    total = 0
    for i in range(3):
        total += double(
            i,
        )
    with open(__file__) as file:
        total += len(file.name) * 0
    print("total", total)
"""


def test_a_point_stops_once_for_each_run_of_a_statement(tmp_path: Path) -> None:
    screen = played(tmp_path, LOOP, "break prog.py:7", "break prog.py:10", *["continue"] * 6)
    assert stops(screen) == ["prog.py:7"] * 3 + ["prog.py:10"]
    assert "total 6" in screen


def test_conditions_counts_and_commands_are_those_of_other_points(tmp_path: Path) -> None:
    lines = ["break prog.py:2 if x == 1", "break prog.py:3", "ignore 2 1", "commands 2\nsilent\np y\nend"]
    screen = played(tmp_path, LOOP, *lines, "continue", "continue", "info breaks", "disable", "continue")
    assert "double()  break 1" in screen and "(break 2) p y" in screen
    assert "total 6" in screen


def test_a_condition_over_a_name_that_is_not_assigned_yet_does_not_hold(tmp_path: Path) -> None:
    screen = played(tmp_path, LOOP, "break prog.py:6 if i == 1", "continue", "p i", "continue")
    assert "raised" not in screen and "$1  1" in screen
    screen = played(tmp_path, LOOP, "break prog.py:6 if nothing == 1", "continue")
    assert "condition 'nothing == 1' raised NameError" in screen


def test_temporary_deleted_and_cleared_points_stop_no_more(tmp_path: Path) -> None:
    lines = ["tbreak double", "break prog.py:3", "continue", "clear prog.py:3", "continue"]
    screen = played(tmp_path, LOOP, *lines)
    assert stops(screen) == ["prog.py:2"] and "deleted 2" in screen
    assert "✗ no point is at prog.py:9" in played(tmp_path, LOOP, "clear prog.py:9")


def test_a_line_without_code_moves_and_says_so(tmp_path: Path) -> None:
    screen = played(
        tmp_path, LOOP, "break prog.py:4", "break prog.py:9", "break prog.py:1", "break prog.py:99"
    )
    assert "break 1 at prog.py:5; line 4 has no code; it stops at the next line that has" in screen
    assert "break 2 at prog.py:7; line 9 belongs to the statement at line 7" in screen
    assert "break 3 at double prog.py:2; line 1 has no code of its own" in screen
    assert "✗ prog.py has no code at line 99 or after it" in screen


def test_a_file_that_is_not_loaded_yet_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "later.py").write_text("def go():\n    a = 1\n    return a\n")
    source = """\
        import sys, os
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "deep"))
        import later
        print(later.go())
        del sys.modules["later"]; sys.path.pop(0)
    """
    lines = ["break later.py:2", "break never.py:5", "continue", "where", "info breaks", "continue"]
    screen = played(tmp_path, source, *lines)
    assert "break 1 at later.py:2, pending until such a file is loaded" in screen
    assert "break 1 is now set at later.py:2" in screen and "go()  break 1" in screen
    assert "break 2 at never.py:5: pending: no file never.py was loaded so far" in screen


def test_two_files_of_one_name_must_be_told_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "part.py").write_text("def f():\n    return 1\n")
    source = "import one.part, two.part\nx = 1\none.part.f(); two.part.f()\n"
    lines = ["break prog.py:2", "continue", "break part.py:2", "break two/part.py:2", "continue"]
    screen = played(tmp_path, source, *lines)
    for name in ("one", "two"):
        sys.modules.pop(f"{name}.part")
        sys.modules.pop(name)
    assert "part.py is the end of 2 files: " in screen
    assert stops(screen) == ["prog.py:2", "part.py:2"]


def test_functions_by_name_before_the_script_and_after(tmp_path: Path) -> None:
    source = """\
        class A:
            def go(self):
                return 1
        class B:
            def go(self):
                return 2
        print(A().go() + B().go())
    """
    screen = played(tmp_path, source, "break B.go", "break go", "break A.gone", "continue", "where")
    assert "break 1 at B.go prog.py:6" in screen
    assert "break 2 at go, pending" in screen and "break 3 at A.gone, pending" in screen
    assert stops(screen) == ["prog.py:6"]


STEPS = """\
    def inner(n):
        if n > 0:
            inner(n - 1)
        return n

    def outer():
        a = inner(2)
        b = [inner(0) for _ in range(2)]
        try:
            fail()
        except ValueError:
            c = 1
        return a + len(b) + c

    def fail():
        raise ValueError("no")

    print("got", outer())
    print("end")
"""


def test_next_line_goes_over_calls_and_out_of_functions(tmp_path: Path) -> None:
    screen = played(tmp_path, STEPS, "break outer", "continue", *["next line"] * 8, "continue")
    assert stops(screen) == [f"prog.py:{n}" for n in (7, 8, 9, 10, 11, 12, 13, 19)]
    assert "got 5" in screen


def test_step_line_goes_into_functions_and_next_line_stays_in_its_own_call(tmp_path: Path) -> None:
    screen = played(
        tmp_path, STEPS, "break outer", "continue", *["step line"] * 3, *["next line"] * 2, "continue"
    )
    assert stops(screen) == [f"prog.py:{n}" for n in (7, 2, 3, 2, 3, 4)], (
        "not into the call that line 3 makes"
    )


def test_finish_returns_with_the_value_and_until_leaves_a_loop(tmp_path: Path) -> None:
    screen = played(
        tmp_path, STEPS, "break inner if n == 1", "continue", "finish", "finish", "next line", "q"
    )
    assert "inner()  returns" in screen and "returns  1" in screen and "inner() returns already" in screen
    assert stops(screen)[-1] == "prog.py:4"
    screen = played(
        tmp_path, LOOP, "break prog.py:6", "continue", "delete", "next line", "until", "until 12", "c"
    )
    assert stops(screen) == ["prog.py:6", "prog.py:7", "prog.py:10", "prog.py:12"]


def test_a_fault_leaves_finish_in_the_handler(tmp_path: Path) -> None:
    screen = played(tmp_path, STEPS, "break fail", "continue", "finish", "continue")
    assert stops(screen) == ["prog.py:16", "prog.py:11"] and "got 5" in screen


def test_steps_begin_before_the_program_and_end_with_it(tmp_path: Path) -> None:
    screen = played(tmp_path, "a = 1\nb = 2\n", "step line", "next line", "next line")
    assert stops(screen) == ["prog.py:1", "prog.py:2"]


def test_generators_and_coroutines_are_followed(tmp_path: Path) -> None:
    source = """\
        import asyncio

        def gen():
            yield 1
            yield 2

        async def wait(n):
            await asyncio.sleep(0)
            return n

        async def main():
            one = await wait(1)
            two = await wait(2)
            return one + two

        def work():
            done.append(sum(gen()))

        done = []
        work()
        print("all", done, asyncio.run(main()))
    """
    lines = [
        "break prog.py:5",
        "break prog.py:12",
        "continue",
        "where",
        "continue",
        "next line",
        "next line",
        "c",
    ]
    screen = played(tmp_path, source, *lines)
    assert "gen()  break 1" in screen and "work()    running" in screen
    assert stops(screen) == [f"prog.py:{n}" for n in (5, 12, 13, 14)]
    assert "all [3] 3" in screen


THREAD = """\
    import threading

    def work():
        a = 1
        b = 2

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    print("joined")
"""


def test_points_stop_in_every_thread(tmp_path: Path) -> None:
    screen = played(tmp_path, THREAD, "break work", "continue", "next line", "continue")
    assert stops(screen) == ["prog.py:4", "prog.py:5"] and "joined" in screen


THREADS = """\
    import threading

    def work(out):
        total = 0
        for i in range(4):
            total += i
        out.append(total)

    def main():
        out = []
        threads = [threading.Thread(target=work, args=(out,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        work(out)
        for thread in threads:
            thread.join()
        print("sums", *out)

    main()
"""


def test_stops_in_several_threads_leave_all_of_them_running(tmp_path: Path) -> None:
    """An exception that was taken back kept Python 3.11 at one instruction of each followed thread."""
    file = tmp_path / "prog.py"
    file.write_text(dedent(THREADS))
    looks = ["info locals", "where", "p total", "info threads", "interact", "e = 40", "\x04"]
    steps = ["continue", "next line", "step line", "until", "continue", "next line"]
    lines = ["break work", "break prog.py:7", "continue", *[x for step in steps for x in (*looks, step)]]
    typed = "\n".join([*lines, "delete", "continue"]) + "\n"
    done = quick_python.run(["-m", "layerstep", "run", file], input=typed)
    assert "sums 6 6 6 6" in done.stdout and done.returncode == 0, done.stdout + done.stderr
    assert "work()  break 1  thread Thread-" in done.stderr


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="later Pythons follow all threads")
def test_a_thread_that_ran_before_the_point_is_left_alone_and_the_point_says_so(tmp_path: Path) -> None:
    source = """\
        import threading, torch

        def work():
            go.wait()
            late()
            called.set()
            end.wait()

        def late():
            return 1

        go, called, end = threading.Event(), threading.Event(), threading.Event()
        thread = threading.Thread(target=work, daemon=True)
        model = torch.nn.Linear(1, 1)
        thread.start()
        model(torch.ones(1, 1))
        go.set()
        called.wait(100)
        model(torch.ones(1, 1))
        end.set()
        thread.join()
    """
    lines = ["break model", "continue", "break late", "continue", "info breaks", "continue"]
    screen = played(tmp_path, source, *lines)
    assert "late() did not run; threads that ran before the point was set are not followed" in screen


@pytest.mark.parametrize(
    ("step", "line"), [("step line", 7), ("next line", 7), ("until 8", 8), ("until", 7), ("finish", 8)]
)
def test_a_step_by_lines_goes_on_in_any_thread_that_has_stopped(tmp_path: Path, step: str, line: int) -> None:
    """Also where points at lines are first asked for in another one, and the thread ran before."""
    source = """\
        import threading
        import layerstep

        def work():
            go.wait()
            layerstep.set_trace()
            a = 1
            return a

        go = threading.Event()
        thread = threading.Thread(target=work, name="early")
        thread.start()
        layerstep.set_trace()
        go.set()
        thread.join()
        print("joined")
    """
    lines = ["continue", "break prog.py:16", "continue", step, "continue", "continue"]
    screen = played(tmp_path, source, *lines)
    assert stops(screen) == ["prog.py:13", "prog.py:6", f"prog.py:{line}", "prog.py:16"]
    assert "thread early" in screen and "joined" in screen


def test_a_step_stays_in_its_thread(tmp_path: Path) -> None:
    source = """\
        import threading

        def busy():
            while not over.wait(0.0005):
                turns.release()
        over, turns = threading.Event(), threading.Semaphore(0)
        thread = threading.Thread(target=busy)
        thread.start()
        a = 1
        turns.acquire(), turns.acquire()
        b = 2
        over.set(), thread.join()
        print("joined")
    """
    screen = played(tmp_path, source, "break prog.py:9", "continue", *["step line"] * 3, "continue")
    assert stops(screen) == [f"prog.py:{n}" for n in (9, 10, 11, 12)] and "joined" in screen


@pytest.mark.parametrize("last", ["detach", "continue"])
def test_a_thread_is_followed_no_more_when_another_one_ends_its_step(tmp_path: Path, last: str) -> None:
    source = """\
        import sys, threading
        from torch import nn, ones

        layer = nn.Linear(2, 2)

        def run():
            thread = threading.Thread(target=layer, args=(ones(1, 2),))
            thread.start(), thread.join()
            return sys.gettrace(), sys._getframe().f_trace

        print("left:", run())
    """
    lines = ["break layer", "break prog.py:8", "continue", "delete 2", "next line", last]
    screen = played(tmp_path, source, *lines)
    assert "layer  done" in screen and "left: (None, None)" in screen


def test_a_function_that_has_returned_is_not_kept_alive(tmp_path: Path) -> None:
    source = """\
        import torch, weakref
        refs = []

        def make():
            x = torch.ones(3)
            refs.append(weakref.ref(x))
            return 1

        make()
        print("here")
    """
    lines = ["break prog.py:7", "continue", "next line", "print refs[0]() is None", "continue"]
    assert "$1  True" in played(tmp_path, source, *lines)


def test_closures_keep_what_another_thread_wrote_during_a_stop(tmp_path: Path) -> None:
    source = """\
        import threading

        def main():
            count = 0
            go = threading.Event()

            def bump():
                nonlocal count
                go.wait()
                count = 5
            thread = threading.Thread(target=bump)
            thread.start()
            mark = 1
            thread.join()
            print("count", count)

        main()
    """
    lines = ["break prog.py:13", "continue", "!(go.set(), thread.join(100))[0]", "continue"]
    assert "count 5" in played(tmp_path, source, *lines)


@pytest.mark.parametrize("last", ["delete", "disable", "tbreak", "detach"])
def test_variables_keep_their_values_when_the_last_point_goes_at_its_stop(tmp_path: Path, last: str) -> None:
    source = """\
        def outer(a, b):
            def inner(c):
                d = c + 1
                return a + b + c + d
            total = inner(1)
            return total + a

        print("got", outer(10, 20))
    """
    looks = ["info locals", "args", "p b", "up", "p total", "down", "interact", "e = 40", "\x04"]
    set_by = "tbreak" if last == "tbreak" else "break"
    ends = [] if last == "tbreak" else [last]
    screen = played(tmp_path, source, f"{set_by} prog.py:4", "continue", *looks, *ends, "continue")
    assert "inner()  " in screen and "got 43" in screen


def test_another_trace_function_is_left_alone_and_named(tmp_path: Path) -> None:
    source = """\
        import sys

        def tracer(frame, event, arg):
            return None

        def work():
            kept = sys.gettrace() is tracer
            return kept

        sys.settrace(tracer)
        kept = work()
        sys.settrace(None)
        print("kept", kept)
    """
    screen = played(tmp_path, source, "break work", "continue")
    assert "kept True" in screen
    if not hasattr(sys, "monitoring"):
        assert "break 1 at work prog.py:7: never fired: work() did not run" in screen


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="monitoring tools do not meet trace functions")
def test_a_trace_function_that_was_there_before_is_named() -> None:
    model = torch.nn.Linear(2, 2)
    console = DebugConsole(model, commands=[], output=io.StringIO())
    console.execute(f"break {LOOP_FILE}:28")

    def other(*_: object) -> None:
        return None

    sys.settrace(other)
    try:
        with console:
            model(torch.ones(1, 2))
            assert sys.gettrace() is other
            said = console.execute("info breaks")
    finally:
        sys.settrace(None)
    assert "another trace function is on" in str(said)


def bits(lines: Sequence[str], tmp_path: Path) -> str:
    source = LOOP_FILE.read_text().replace(
        "    return loss.item()",
        "    print(*[p.sum().item().hex() for p in model.parameters()])\n    return loss.item()",
    )
    screen = played(tmp_path, source, *lines)
    return next(line for line in screen.splitlines() if line.startswith(("0x", "-0x")))


def test_looking_at_lines_changes_no_bit(tmp_path: Path) -> None:
    bare = bits(["continue"], tmp_path)
    looks = ["info locals", "args", "where", "stats x", "p loss", "ll"]
    every = [line for _ in range(12) for line in ("step line", *looks)]
    assert bits(["break train", "continue", *every, "delete", "continue"], tmp_path) == bare
    mixed = ["break prog.py:29", "continue", "step", "next line", "next", "finish", "step line", "step op"]
    assert bits([*mixed, "delete", "continue"], tmp_path) == bare


def test_nothing_is_installed_where_no_line_is_asked_for(tmp_path: Path) -> None:
    source = "import sys, threading\nprint('tracer', sys.gettrace(), threading.gettrace())\n"
    assert "tracer None None" in played(tmp_path, source, "continue")
    both = ["break prog.py:9", "delete", "continue"]
    assert "tracer None None" in played(tmp_path, source + "\n" * 6 + "x = 1\n", *both)
    disabled = ["break prog.py:9", "disable", "info cost", "continue"]
    assert "tracer None None" in played(tmp_path, source + "\n" * 6 + "x = 1\n", *disabled)


def test_a_line_in_compiled_code_says_why_it_is_silent(tmp_path: Path) -> None:
    source = """\
        import torch

        def helper(x):
            return x * 2

        @torch.compile(backend="eager")
        def f(x):
            y = helper(x)
            return y.sin()

        for _ in range(2):
            out = f(torch.ones(3))
        print("out", out.sum().item())
    """
    screen = played(
        tmp_path, source, "break prog.py:8", "break helper", "break prog.py:13", "continue", "continue"
    )
    assert "out 2.72" in screen and stops(screen) == ["prog.py:13"]
    assert "f() is compiled: it runs as a graph" in screen
    assert "helper() did not run as Python" in screen


def test_silent_lines_say_why(tmp_path: Path) -> None:
    source = """\
        def never():
            a = 1
            return a

        def half(x):
            if x:
                return 1
            return 2

        print(half(True))
    """
    screen = played(tmp_path, source, "break never", "break prog.py:8", "continue")
    assert "break 1 at never prog.py:2: never fired: never() did not run" in screen
    assert "break 2 at prog.py:8: never fired: half() ran, but not to line 8" in screen


def test_workers_of_a_loader_are_not_stopped(tmp_path: Path) -> None:
    source = """\
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Data(Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, i):
                return torch.tensor(i)

        print("sum", sum(int(b.sum()) for b in DataLoader(Data(), num_workers=1)))
    """
    screen = played(tmp_path, source, "break Data.__getitem__", "continue")
    assert "sum 6" in screen and "DataLoader workers are not followed" in screen


def test_names_of_outer_functions_are_found_and_their_place_is_told(tmp_path: Path) -> None:
    source = """\
        import torch
        shared = "global"

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a = torch.nn.Linear(2, 2)

            def forward(self, x):
                return self.a(x)

        def train():
            net, x, out = Net(), "mine", 7
            opt = torch.optim.SGD(net.parameters(), lr=0.5)
            for n in range(2):
                loss = net(torch.ones(1, 2)).sum()
                loss.backward()
                opt.step()

        train()
    """
    lines = ["break a", "continue", "p n", "x", "out", "shared", "lr", "nothing", "continue", "lr"]
    screen = played(tmp_path, source, *lines, "delete", "break a backward", "continue", "loss")
    assert "$1  0\n· n from train() prog.py:16" in screen
    assert "$2  f32[1, 2]" in screen, "the innermost function's own x"
    assert "$3  f32[1, 2]" in screen, "out is the module's"
    assert "$4  global" in screen and "no command or name 'nothing'" in screen
    assert screen.count("no command or name 'lr'") == 1, "known after the first step of the optimizer"
    assert "$5  0.5" in screen


def test_loss_is_the_tensor_whose_backward_runs_where_no_function_has_the_name(tmp_path: Path) -> None:
    source = """\
        import torch

        def train():
            net = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
            torch.nn.init.ones_(net[0].weight)
            for _ in range(2):
                error = net(torch.ones(1, 2)).square().sum()
                error.backward()

        train()
    """
    lines = ["break 0", "continue", "loss", "delete", "break 0 backward", "continue", "loss.item()"]
    screen = played(tmp_path, source, *lines)
    assert "no command or name 'loss'" in screen, "no backward runs in the forward"
    assert "$1  4.0" in screen


def test_at_a_line_the_functions_own_names_come_first(tmp_path: Path) -> None:
    source = """\
        def go(step, out, name):
            model = "mine"
            return step

        go("s", "o", "n")
    """
    screen = played(
        tmp_path, source, "break prog.py:3", "continue", "p (step, out, name, model)", "args", "whatis step"
    )
    assert "('s', 'o', 'n', 'mine')" in screen and "builtins.str" in screen


def test_pdbs_words(tmp_path: Path) -> None:
    lines = ["break double", "b", "c", "a", "ll", "l 5,6", "l 6", "pp x", "display x", "undisplay x"]
    screen = played(
        tmp_path, LOOP, *lines, "jump 3", "restart", "h whatis", "w", "u", "d", "unt", "r", "clear 1", "cont"
    )
    assert "break line  double prog.py:2" in screen and "→ 2      y = x * 2" in screen
    assert "watch 2: x" in screen and "watch 2 dropped" in screen
    assert "layerstep cannot jump" in screen and "cannot start the program again" in screen
    assert "✗" not in screen and "total 6" in screen


def test_interact_takes_python_until_the_end_of_input(tmp_path: Path) -> None:
    lines = [
        "break double",
        "continue",
        "interact",
        "step = 40",
        "step + 2",
        "\x04",
        "where",
        "delete",
        "continue",
    ]
    screen = played(tmp_path, LOOP, *lines)
    assert "$1  42" in screen and "back at the debugger's prompt" in screen
    assert "→ 0  double()" in screen and "total 6" in screen


def stayed(source: str, folder: Path, lines: Sequence[str], stay: Stay) -> tuple[str, int]:
    file = folder / "prog.py"
    file.write_text(source)
    output = io.StringIO()
    session, _ = open_session(input=io.StringIO("\n".join(lines) + "\n"), output=output)
    before = sys.argv, sys.path[0], sys.modules["__main__"]
    try:
        return "", debug(Program(str(file), []), session, stay=stay)
    finally:
        sys.argv, sys.path[0], sys.modules["__main__"] = before
        source = output.getvalue()
        stayed.screen = source  # type: ignore[attr-defined]


def test_the_prompt_at_the_end_sees_the_globals_and_keeps_the_exit_code(tmp_path: Path) -> None:
    source = "import sys\nvalue = 6 * 7\nsys.exit(7)\n"
    lines = ["break nothing.at.all", "continue", "value", "quit"]
    _, code = stayed(source, tmp_path, lines, Stay.IF_SILENT)
    screen = stayed.screen  # type: ignore[attr-defined]
    assert code == 7 and "prog.py has ended with exit code 7" in screen and "$1  42" in screen
    _, code = stayed(source, tmp_path, ["continue", "value"], Stay.IF_SILENT)
    assert code == 7 and "has ended" not in stayed.screen  # type: ignore[attr-defined]
    _, code = stayed(source, tmp_path, ["continue", "value"], Stay.ALWAYS)
    assert code == 7 and "$1  42" in stayed.screen  # type: ignore[attr-defined]


def test_lines_files_and_functions_are_completed() -> None:
    console = DebugConsole(torch.nn.Linear(1, 1), commands=[], output=io.StringIO())
    console.session.instruments.get(SourceLines).script = str(LOOP_FILE)

    def texts(line: str) -> list[str]:
        return [candidate.text for candidate in complete(console.session, line)]

    assert "loop.py:" in texts("break lo") and "train" in texts("break tr")
    assert texts("break loop.py:3") == [f"loop.py:{n}" for n in (3, 30, 34, 35, 36, 37)]
    assert texts("tbreak Net.f") == ["Net.forward"] == texts("until Net.f")


def test_the_library_stops_at_lines_too() -> None:
    names: dict[str, object] = {"__name__": "not_main"}
    exec(compile(LOOP_FILE.read_text().rpartition("print(")[0], str(LOOP_FILE), "exec"), names)
    output = io.StringIO()
    console = DebugConsole(
        torch.nn.Linear(1, 1), commands=["continue", "p number", "continue"], output=output
    )
    console.breakpoint(f"{LOOP_FILE}:28", condition="number == 2")
    with console:
        names["train"](3)  # type: ignore[operator]
    assert "train()  break 1" in output.getvalue() and "$1  2" in output.getvalue()
