"""`back` in a script that is run under the debugger: at exceptions, and where discovery finds the model."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from play import play

PROGRAM = """\
    import torch
    from torch import nn


    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            y = self.lin(x)
            if FAILS:
                raise ValueError("it failed")
            return self.drop(y)


    FAILS = False
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Part())
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for number in range(3):
        FAILS = number == 2
        try:
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
        except ValueError as error:
            print("caught", error)
    total = sum(float(each.detach().double().sum()) for each in model.parameters())
    print("end", format(total, ".12g"), torch.rand(1).item())
"""


def _screen(folder: Path, *lines: str) -> str:
    file = folder / "prog.py"
    file.write_text(dedent(PROGRAM))
    return play(file, lines, width=120)[0]


def _end(screen: str) -> str:
    return next(line for line in screen.splitlines() if line.startswith("end"))


def test_back_from_an_exception_goes_to_what_was_passed_last(tmp_path: Path) -> None:
    bare = _screen(tmp_path, "config catch_exceptions off", "continue")
    lines = ["catch exception", "continue", "back", "back", "continue", "back lin", "detach"]
    screen = _screen(tmp_path, *lines)
    assert _end(screen) == _end(bare)
    first, second = screen.split("(layerstep) back\n")[1:3]
    assert "1.lin  done" in first and "came back to the same bits: 2 of 2 outputs" in first
    assert "1.lin  entered" in second
    assert screen.count("✗ ValueError: it failed") == 2
    assert screen.count("caught it failed") == 1


def test_an_exception_is_told_once(tmp_path: Path) -> None:
    screen = _screen(tmp_path, "break 0", "continue", "delete", "continue", "continue")
    assert screen.count("✗ ValueError: it failed") == 1 and screen.count("caught it failed") == 1


def test_the_end_of_a_script_is_the_same(tmp_path: Path) -> None:
    bare = _screen(tmp_path, "config catch_exceptions off", "continue")
    lines = [
        "config catch_exceptions off",
        "break 1.drop",
        "continue",
        "back 4",
        "next",
        "next",
        "next",
        "back 2",
    ]
    screen = _screen(tmp_path, *lines, "continue", "restart", "delete", "continue")
    assert _end(screen) == _end(bare) and screen.count("came back to the same bits") == 2


def test_after_the_forward_one_line_offers_replay(tmp_path: Path) -> None:
    bare = _screen(tmp_path, "config catch_exceptions off", "continue")
    at = next(at for at, line in enumerate(PROGRAM.splitlines(), 1) if "loss.backward()" in line)
    lines = ["config catch_exceptions off", f"break prog.py:{at}", "continue", "back", "back 1.lin", "delete"]
    screen = _screen(tmp_path, *lines, "continue")
    assert f"prog.py:{at}  loss.backward()" in screen and _end(screen) == _end(bare)
    assert screen.count("no forward is running here; `replay` runs one that is over again, on copies") == 2
