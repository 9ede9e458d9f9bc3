"""The statements of a file: where each begins, and which line a point means. No torch, no running code."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from layerstep.process.frames import is_inline
from layerstep.source_lines.statements import SourceFile, begins_in, read_source

SOURCE = """\
def f(xs):
    total = max(
        sum(xs),
        3,
    )
    for a in [
        1,
        2,
    ]:
        total += a
    with open(
        "/dev/null",
    ) as file:
        total += len(file.name)
    while total < 30:
        total += (
            9 if total > 25
            else 4
        )
    try:
        y = [v * 2
             for v in xs]
    finally:
        total += 1
    return total


# a comment
class A:
    @property
    def g(self):
        \"\"\"Doc.\"\"\"
        return 1

    def one(self): return 2


def gen():
    yield 1

    yield 2
"""


@pytest.fixture
def source(tmp_path: Path) -> SourceFile:
    file = tmp_path / "sample.py"
    file.write_text(SOURCE)
    found = read_source(str(file))
    assert found is not None
    return found


def reports(source: SourceFile, call: str) -> list[int]:
    """The lines that count as a new statement while a line of the sample runs."""
    seen: list[int] = []

    def local(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and not is_inline(frame) and frame.f_lasti in begins_in(frame.f_code, source):
            seen.append(frame.f_lineno)
        return local

    names: dict[str, Any] = {}
    exec(compile(SOURCE, source.path, "exec"), names)
    before = sys.gettrace()
    sys.settrace(lambda frame, event, arg: local if frame.f_code.co_filename == source.path else None)
    try:
        eval(call, names)
    finally:
        sys.settrace(before)
    return seen


def test_a_statement_is_reported_once_however_many_lines_it_has(source: SourceFile) -> None:
    seen = [source.statement_at[line] for line in reports(source, "f([1, 2])")]
    loop = [6, 10, 6, 10, 6]
    rest = seen[1 + len(loop) :]
    assert seen[: 1 + len(loop)] == [2, *loop]
    assert rest[:2] == [11, 14], "the end of a with block is no statement"
    assert rest[2:-4].count(16) == rest[2:-4].count(15) - 1, "a loop comes round"
    assert rest[-4:] == [20, 21, 24, 25]


def test_one_line_functions_and_generators_report_their_line(source: SourceFile) -> None:
    assert reports(source, "A().one()") == [35]
    assert reports(source, "list(gen())") == [39, 41]


@pytest.mark.parametrize(
    "line, stop, function",
    [
        (2, 2, ""),
        (4, 2, ""),  # inside of a statement
        (1, 2, "f"),  # a def is its body
        (12, 11, ""),
        (30, 33, "A.g"),  # a decorator
        (32, 33, ""),  # a docstring
        (35, 35, "A.one"),
        (40, 41, ""),
        (99, 0, ""),
    ],
)
def test_which_line_a_point_means(source: SourceFile, line: int, stop: int, function: str) -> None:
    assert source.stop_for(line) == (stop, function)


def test_functions_by_name_and_by_line(source: SourceFile) -> None:
    assert [each.name for each in source.named("A.g")] == ["A.g"] == [e.name for e in source.named("g")]
    assert source.named("nothing") == []
    assert [source.function_at(line) for line in (3, 27, 33, 41)] == ["f", "", "A.g", "gen"]


def test_what_is_no_python_has_no_statements(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def (")
    assert read_source(str(tmp_path / "bad.py")) is None
    assert read_source(str(tmp_path / "none.py")) is None


def test_without_a_source_every_reported_line_counts() -> None:
    code: CodeType = compile("a = 1\nb = (\n2)\n", "<text>", "exec")
    assert len(begins_in(code, None)) >= 2
