"""On a narrow screen a number is shown whole or its column is named as hidden; names stay distinct."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from layerstep.render.names import shortened_all, wrapped
from layerstep.render.screen import to_text
from layerstep.views import Column, Fields, Node, Plot, Span, Table, Text, Tree

NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(lambda x: f"{x:.3g}"),
    st.integers(-(10**9), 10**9).map(lambda x: f"{x:,}"),
    st.sampled_from(["8.94e-13", "2.83e-8", "nan", "-inf", "12.3 kB", "100%", ""]),
)
PARTS = st.sampled_from(["stage1", "stage2", "h", "0", "1", "10", "conv", "norm", "weight", "bias", "a" * 30])
PATHS = st.lists(PARTS, min_size=1, max_size=7).map(".".join)
WORDS = st.lists(st.sampled_from(["near", "lr=2.83e-8,", "x" * 40, "1.5e-12", "dead:"]), max_size=6)
WIDTHS = st.integers(20, 120)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    kinds = draw(st.lists(st.sampled_from(["number", "text", "picture"]), min_size=1, max_size=9))
    columns = [Column("parameter", "path")]
    columns += [Column(f"{kind}{i}", right=kind == "number") for i, kind in enumerate(kinds)]
    cells = {
        "number": NUMBERS,
        "text": WORDS.map(" ".join),
        "picture": st.just("▁▂▃▄▅▆▇█▇▆▅▄▃▂▁"),
    }
    rows = draw(st.lists(st.tuples(PATHS, *(cells[kind] for kind in kinds)), min_size=1, max_size=6))
    return Table(tuple(columns), tuple(rows))


def hidden(text: str) -> set[str]:
    found = re.search(r"hidden, the screen is narrow: (.*?); `export", " ".join(text.split()))
    return set(found[1].split(", ")) if found else set()


@settings(deadline=None)
@given(tables(), WIDTHS)
def test_each_number_is_whole_or_its_column_is_named(table: Table, width: int) -> None:
    text = to_text(table, width=width)
    assert all(len(line) <= width for line in text.splitlines())
    words = text.split()
    away = hidden(text)
    for at, column in enumerate(table.columns):
        if column.name in away:
            continue
        for cell in (row[at] for row in table.rows):
            numbers = cell.split() if column.right else re.findall(r"[\d.]+e-\d+", cell)
            assert all(any(number in word for word in words) for number in numbers), (cell, text)


@given(st.lists(PATHS, min_size=1, max_size=12), st.integers(6, 60))
@example(["stage1.stage1", "stage1.0.10.stage1"], 6)
def test_shortened_names_stay_distinct_and_fit(names: list[str], room: int) -> None:
    shown = shortened_all(names, room)
    assert set(shown) == set(names)
    assert len(set(shown.values())) == len(shown)
    assert all(len(line) <= room for text in shown.values() for line in text.split("\n"))
    assert all(text == name for name, text in shown.items() if len(name) <= room and "…" not in text)


@given(WORDS.map(" ".join), st.integers(12, 60))
def test_wrapping_loses_nothing_and_breaks_no_number(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(len(line) <= width for line in lines)
    found = [number for line in lines for number in re.findall(r"[\d.]+e-\d+", line)]
    assert found == re.findall(r"[\d.]+e-\d+", text)


@pytest.mark.parametrize("width", [80, 60, 40])
def test_the_layers_of_two_stages_do_not_look_the_same(width: int) -> None:
    names = [f"stage{i}.blocks.{j}.branch2.conv.weight" for i in range(3) for j in range(4)]
    columns = (Column("parameter", "path"), *(Column(f"figure {i}", right=True) for i in range(4)))
    table = Table(columns, tuple((name, *["-8.94e-13"] * 4) for name in names))
    rows = to_text(table, width=width).splitlines()[1 : 1 + len(names)]
    assert len({row.split()[0] for row in rows}) == len(names)
    assert all(row.split()[1] == "-8.94e-13" for row in rows)


@pytest.mark.parametrize("width", [80, 60, 40, 24])
def test_labels_trees_and_plots_keep_numbers_whole(width: int) -> None:
    figure, names = "-8.94e-13", ("a.layers.0.conv.weight", "a.layers.1.conv.weight")
    views = [
        Fields(
            (Span("x"),), (("a.long.label.that.takes.the.whole.line", Text(f"{figure} {figure} {figure}")),)
        ),
        Tree(Node("model", "Net", figure, "", (Node("a" * 20, "Linear", figure),))),
        Plot("sparkline", ((-8.94e-13, 1.0, 2.83e-8),), title="a title of some length"),
        Plot(
            "bar",
            ((-8.94e-13, 1.0),),
            labels=names,
        ),
        Plot("heatmap", ((-8.94e-13, 2.83e-8),)),
    ]
    for view in views:
        text = to_text(view, width=width)
        assert all(len(line) <= width for line in text.splitlines())
        assert not re.search(r"[.\d]\d+…|8\.94(?!e-13)|e-(?!13|8)", text), text
