"""Plots at any width, with and without colour and Unicode; as files; and the commands that draw them."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as XML

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from torch import nn

from layerstep import DebugConsole, registry
from layerstep.errors import MissingExtra
from layerstep.render.scale import Scale, count_scale, scale_of
from layerstep.render.screen import make_console, to_rich, to_text
from layerstep.render.svg import to_svg
from layerstep.tensors.bars import sparkline
from layerstep.tensors.grid import block_means, grid_of
from layerstep.views import Column, Group, Notice, Plot, Table, Text, View

INF, NAN = math.inf, math.nan
WAVE = tuple(math.sin(i / 9) for i in range(90))
TOKENS = ("the", "cat", "sat", "猫は", "$x$ <&>")
PLOTS: dict[str, Plot] = {
    "histogram": Plot("histogram", (tuple(range(36)),), "counts", x=tuple(i / 7 - 2 for i in range(37))),
    "many bins": Plot("histogram", ((1.0,) * 300,), x=tuple(range(301)), y_label="n", x_label="v"),
    "log": Plot("histogram", ((1.0, 0.0, 1e6),), x=(0.0, 1.0, 2.0, 3.0), log=True),
    "line": Plot("line", ((*WAVE[:40], NAN, INF, *WAVE[42:]),), "loss", x_label="step"),
    "two lines": Plot("line", (WAVE, tuple(-v for v in WAVE)), names=("train", "val"), note="a note " * 20),
    "bar": Plot("bar", ((3.0, -1.5, 0.0, NAN, INF),), "norms", labels=("a" * 99, "b", "猫" * 40, "d", "e")),
    "heatmap": Plot("heatmap", ((1.0, -2.0, NAN), (0.5, INF, 2.0)), "scores <&>"),
    "attention": Plot("heatmap", ((0.1, 0.2, 0.3, 0.0, 1.0),) * 5, names=TOKENS, labels=TOKENS),
    "large": Plot("heatmap", tuple(tuple(map(float, range(400))) for _ in range(200)), cell=(2, 3)),
    "sparkline": Plot("sparkline", (WAVE * 9,), "loss"),
}  # fmt: skip
EMPTY = [
    Plot("histogram", ()),
    Plot("histogram", ((0.0, 0.0),), x=(0.0, 1.0, 2.0)),
    Plot("line", ((NAN, NAN),)),
    Plot("bar", ((),)),
    Plot("heatmap", ((),)),
    Plot("sparkline", ((),)),
]


class Latin(io.StringIO):
    encoding = "ascii"  # type: ignore[assignment]


def printed(view: View, *, width: int = 80, colour: str | None = None, ascii_only: bool = False) -> str:
    file = Latin() if ascii_only else io.StringIO()
    console = make_console(file, width=width, colour=bool(colour))
    if colour == "truecolor":
        console = make_console(file, width=width)
        console._color_system, console._force_terminal = 3, True  # type: ignore[assignment]
    console.print(to_rich(view))
    return file.getvalue()


def bare(text: str) -> list[str]:
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]


# --- on a screen -------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [20, 40, 80, 120])
@pytest.mark.parametrize("name", PLOTS)
def test_no_line_is_wider_than_the_screen(name: str, width: int) -> None:
    for colour, ascii_only in ((None, False), ("standard", False), ("truecolor", False), (None, True)):
        lines = bare(printed(PLOTS[name], width=width, colour=colour, ascii_only=ascii_only))
        assert all(cell_len(line) <= width for line in lines), (colour, ascii_only)
        assert 1 <= len(lines) <= 45


@pytest.mark.parametrize("name", PLOTS)
def test_colour_only_where_it_is_wanted(name: str) -> None:
    assert "\x1b[" not in printed(PLOTS[name])
    assert "\x1b[" in printed(PLOTS[name], colour="standard")


@pytest.mark.parametrize("name", ["histogram", "log", "line", "two lines", "heatmap", "large", "sparkline"])
def test_without_unicode_all_is_ascii(name: str) -> None:
    text = printed(PLOTS[name], ascii_only=True)
    assert text.isascii()
    assert len({*text} - {*" \n|+-"}) > 3, "something is drawn"


@pytest.mark.parametrize("plot", EMPTY, ids=lambda plot: plot.kind)
def test_an_empty_plot_says_so(plot: Plot) -> None:
    assert to_text(plot) == "nothing to draw"
    assert "why not" in to_text(replace(plot, note="why not"))
    assert "nothing to draw" in to_svg(plot)


def test_a_histogram_rises_with_its_counts() -> None:
    lines = to_text(PLOTS["histogram"], width=80).splitlines()
    body = [line.partition("│")[2] or line.partition("┤")[2] for line in lines[1:11]]
    tops = [sum(1 for row in body if len(row) > column and row[column] != " ") for column in range(0, 72, 2)]
    assert tops == sorted(tops) and tops[0] == 0 and tops[-1] == 10


def test_one_of_a_million_is_seen() -> None:
    plot = Plot("histogram", ((1_000_000.0, 0.0, 1.0),), x=(0.0, 1.0, 2.0, 3.0))
    bottom = to_text(plot, width=40).splitlines()[9]
    assert "█" in bottom and bottom.rstrip().endswith("▁") and " ▁" in bottom
    by_powers = to_text(replace(plot, log=True), width=40).splitlines()[9]
    assert by_powers.rstrip()[-1] in "▄▅▆▇█"


def test_a_gap_breaks_a_line_and_two_lines_differ_without_colour() -> None:
    whole, broken = (
        to_text(Plot("line", (values,)), width=60)
        for values in ((1.0,) * 50, (1.0,) * 20 + (NAN,) * 10 + (1.0,) * 20)
    )
    row = next(line for line in broken.splitlines() if {*line} & {*"⠉⠒⠤⣀"})
    assert "  " in row.partition("┤")[2].strip() or "  " in row.partition("│")[2].strip()
    assert whole != broken
    two = to_text(PLOTS["two lines"])
    assert "● train   × val" in two and two.count("●") > 9 and two.count("×") > 9


def test_bars_go_both_ways_from_zero() -> None:
    below, above, axis, _ = to_text(Plot("bar", ((-1.0, 1.0),), labels=("down", "up")), width=60).splitlines()
    assert below.startswith("down") and above.startswith("up")
    assert len(below.rstrip()) <= above.index("█") and below.count("█") == pytest.approx(
        above.count("█"), abs=1
    )
    assert axis[above.index("█")] == "┬"


def test_a_heatmap_shows_signs_and_marks_what_is_not_finite() -> None:
    lines = to_text(Plot("heatmap", ((2.0, -2.0, 0.0), (NAN, INF, 1.0)))).splitlines()
    assert lines[0] == "0 │██≣≣" and lines[1] == "1 │✗ ✗ ▒▒"
    assert lines[-1].split() == ["-2", "≣≡=-", "░▒▓█", "2", "✗", "not", "finite"]
    positive = to_text(Plot("heatmap", ((1.0, 3.0),))).splitlines()
    assert positive[0] == "0 │  ██" and positive[-1].split() == ["1", "░▒▓█", "3"]


def test_a_heatmap_that_is_too_large_says_what_a_cell_is() -> None:
    text = to_text(PLOTS["large"], width=80)
    assert "each cell is the mean of 14×18" in text  # 7 rows of 2, 6 columns of 3
    assert len(text.splitlines()) <= 36
    assert "mean of" not in to_text(PLOTS["heatmap"])


def test_colours_of_a_heatmap_follow_the_values() -> None:
    text = printed(Plot("heatmap", ((-1.0, 0.0, 1.0),)), colour="truecolor")
    cells = [part for part in text.splitlines()[0].split("\x1b[") if "█" in part]
    assert len({cell.partition("m")[0] for cell in cells}) == 3


def test_a_sparkline_is_one_line() -> None:
    line = to_text(Plot("sparkline", ((1.0, NAN, 3.0, 2.0),), "loss"))
    assert line == "loss  ▁ █▅  min 1 max 3 last 2"
    assert sparkline([1.0, INF, 2.0]) == "▁!█"
    assert sparkline([]) == "" and sparkline([NAN]) == " " and sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([-1.7e308, 1.7e308]) == "▁█"
    assert sparkline([0.0, 5e-324]) == "▁▁"
    assert len(sparkline(list(map(float, range(1000))), width=30)) <= 30


@settings(deadline=None, max_examples=60)
@example(values=[5e-324], kind="histogram", log=False, width=1)
@example(values=[5e-324], kind="line", log=True, width=30)
@example(values=[5e-324], kind="histogram", log=True, width=30)
@given(
    values=st.lists(st.floats(), max_size=30),
    kind=st.sampled_from(["histogram", "line", "bar", "heatmap", "sparkline"]),
    log=st.booleans(),
    width=st.integers(1, 90),
)
def test_any_numbers_can_be_drawn(values: list[float], kind: Any, log: bool, width: int) -> None:
    plot = Plot(kind, (tuple(values),), log=log)
    text = to_text(plot, width=width)
    assert text and all(cell_len(line) <= width for line in text.splitlines())
    XML.fromstring(to_svg(plot))


@settings(deadline=None, max_examples=100)
@given(low=st.floats(-1e300, 1e300), span=st.floats(1e-6, 1e300), most=st.integers(1, 12))
def test_ticks_are_few_and_on_the_axis(low: float, span: float, most: int) -> None:
    scale = scale_of((low, low + span))
    assert scale is not None
    ticks = scale.ticks(most)
    assert 2 <= len(ticks) <= most + 5
    assert all(-1e-6 <= scale.place(value) <= 1 + 1e-6 for value, _ in ticks)
    assert [value for value, _ in ticks] == sorted(value for value, _ in ticks)


def test_labels_of_an_axis_are_round() -> None:
    assert [label for _, label in Scale(-0.13, 0.4).ticks(6)] == ["-0.1", "0", "0.1", "0.2", "0.3", "0.4"]
    assert [label for _, label in Scale(0, 60_000).ticks(3)] == ["0", "20k", "40k", "60k"]
    scale = count_scale([1, 1000], log=True)
    assert scale is not None and [label for _, label in scale.ticks(5)] == ["1", "10", "100", "1000"]


# --- block means -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 40), columns=st.integers(1, 40), down=st.integers(1, 9), across=st.integers(1, 9))
def test_block_means_equal_those_of_numpy(rows: int, columns: int, down: int, across: int) -> None:
    matrix = np.random.default_rng(0).standard_normal((rows, columns))
    found = block_means(matrix, down, across)
    right = [
        [matrix[i : i + down, j : j + across].mean() for j in range(0, columns, across)]
        for i in range(0, rows, down)
    ]
    np.testing.assert_allclose(found, right, atol=1e-12)


def test_a_grid_of_any_dimensions() -> None:
    tensor = torch.arange(24.0).view(2, 3, 4)
    assert grid_of(tensor, most=(9, 9)).rows == tuple(map(tuple, tensor[0].tolist()))
    turned = grid_of(tensor, (2, 0), most=(9, 9))
    assert turned.rows == tuple(map(tuple, tensor[:, 0, :].t().tolist()))
    assert turned.place == "at [·, 0, ·]"
    assert grid_of(tensor, (-1, -3), most=(9, 9)) == turned
    small = grid_of(tensor, most=(2, 2))
    assert small.block == (2, 2) and small.rows[0] == (2.5, 4.5) and small.rows[1] == (8.5, 10.5)
    spoiled = tensor.clone()
    spoiled[0, 0, 0] = NAN
    assert math.isnan(grid_of(spoiled, most=(2, 2)).rows[0][0])


@pytest.mark.filterwarnings("ignore")
def test_a_grid_of_any_kind() -> None:
    x = torch.tensor([[1.0, 0.0, -2.0], [0.0, 4.0, 0.0]])
    rows = tuple(map(tuple, x.tolist()))
    quantized = torch.quantize_per_tensor(x, 0.5, 3, torch.qint8)
    same = [x.to_sparse(), x.to_sparse_csr(), quantized, x.to_mkldnn(), x.bfloat16(), x.requires_grad_()]
    for tensor in (*same, torch._neg_view(-x.detach().double())):
        assert grid_of(tensor, most=(9, 9)).rows == rows
    assert grid_of(torch.tensor([3 + 4j]), most=(9, 9)).rows == ((5.0,),)
    assert grid_of(torch.tensor(7), most=(9, 9)).rows == ((7.0,),)
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(4, 3)])
    assert grid_of(nested, most=(9, 9)).note == "the first of 2 parts"
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    for tensor in (x.to("meta"), torch.empty(0, 3), freed, nn.UninitializedParameter(), "no tensor"):
        found = grid_of(tensor, most=(9, 9))  # type: ignore[arg-type]
        assert not found.rows and found.note


def test_a_huge_matrix_is_read_in_part() -> None:
    grid = grid_of(torch.ones(1).expand(10**9, 10**8), most=(32, 72))
    assert len(grid.rows) <= 32 and len(grid.rows[0]) <= 72
    assert [value for row in grid.rows for value in row] == pytest.approx([1.0] * sum(map(len, grid.rows)))
    assert grid.note.startswith("read one in ")


# --- files -------------------------------------------------------------------------------------------


def elements(text: str, kind: str) -> list[XML.Element]:
    return [each for each in XML.fromstring(text).iter() if kind in each.get("class", "").split()]


@pytest.mark.parametrize("name", PLOTS)
def test_svg_is_whole_and_by_itself(name: str) -> None:
    text = to_svg(PLOTS[name])
    root = XML.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in text and "currentColor" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in text and "nan" not in text.lower().replace("nan<", "").replace(": nan", "")


def test_svg_has_a_mark_for_each_number() -> None:
    assert len(elements(to_svg(PLOTS["histogram"]), "bar")) == 36
    assert len(elements(to_svg(PLOTS["bar"]), "bar")) == 5
    assert len(elements(to_svg(PLOTS["two lines"]), "line")) == 4  # two of them in the legend
    cells = elements(to_svg(PLOTS["heatmap"]), "cell")
    assert len(cells) == 6 and sum("bad" in cell.get("class", "") for cell in cells) == 2
    line = elements(to_svg(PLOTS["line"]), "line")[0]
    assert line.get("d", "").count("M") == 2, "in two pieces, before and after the gap"
    assert len(to_svg(PLOTS["large"])) < 3_000_000


def test_svg_escapes_what_it_is_given() -> None:
    text = to_svg(Plot("bar", ((1.0,),), 'a <b> & "c" \x00\x1b', labels=("<script>",)))
    shown = [each.text for each in XML.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    assert any(each and each.startswith('a <b> & "c" ') for each in shown) and "<script>" in shown
    assert any(each.text == "· said" for each in XML.fromstring(to_svg(Notice("said"))).iter())


def test_json_holds_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "plot.json"
    registry.find_export(".json").write(PLOTS["heatmap"], path)  # type: ignore[union-attr]
    view = json.loads(path.read_text())["view"]
    assert view["kind"] == "heatmap"
    again = tuple(tuple(float(value) for value in row) for row in view["values"])
    assert np.array_equal(again, PLOTS["heatmap"].values, equal_nan=True)


def rows_of(view: View, path: Path) -> list[list[str]]:
    registry.find_export(".CSV").write(view, path)  # type: ignore[union-attr]
    return list(csv.reader(io.StringIO(path.read_text(), newline="")))


def test_csv_holds_plots_and_tables(tmp_path: Path) -> None:
    path = tmp_path / "it.csv"
    table = Table((Column("name"), Column("n")), (("a, b", "1"),))
    assert rows_of(Group((Text("x"), table)), path) == [["name", "n"], ["a, b", "1"]]
    histogram = rows_of(PLOTS["histogram"], path)
    assert histogram[0] == ["from", "to", "count"] and len(histogram) == 37
    lines = rows_of(PLOTS["two lines"], path)
    assert lines[0] == ["x", "train", "val"] and float(lines[5][1]) == WAVE[4] == -float(lines[5][2])
    assert rows_of(Plot("heatmap", ((1.0, 2.0),), cell=(4, 8)), path) == [["", "0", "8"], ["0", "1.0", "2.0"]]
    assert rows_of(Plot("bar", ((1.5,),), labels=("a",)), path) == [["label", "value"], ["a", "1.5"]]


@pytest.mark.parametrize("name", PLOTS)
def test_png_is_a_picture(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.png"
    registry.find_export(".png").write(PLOTS[name], path)  # type: ignore[union-attr]
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") and path.stat().st_size > 5_000


def test_an_export_without_its_extra_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"pip install 'layerstep\[plots\]'"):
        registry.find_export(".png").write(PLOTS["line"], tmp_path / "a.png")  # type: ignore[union-attr]


def test_a_pdf_has_a_page_for_each_screenful(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "a.pdf"
    lines = Text("\n".join(f"line {i}" for i in range(150)))
    registry.find_export(".pdf").write(Group((lines, PLOTS["heatmap"])), path)  # type: ignore[union-attr]
    data = path.read_bytes()
    assert data.startswith(b"%PDF-") and data.rstrip().endswith(b"%%EOF")
    assert len(re.findall(rb"/Type /Page\b(?!s)", data)) == 3  # 66 lines to a page


def test_a_page_is_whole_escaped_and_without_anything_to_load(tmp_path: Path) -> None:
    path = tmp_path / "a <b>.html"
    view = Group((Notice("<script>alert(1)</script> & \x1b[31m", "hint", "warn"), PLOTS["heatmap"]))
    registry.find_export(".html").write(view, path)  # type: ignore[union-attr]
    text = path.read_text()
    assert "<script" not in text and "\x1b" not in text and "&lt;script&gt;" in text
    assert "<title>a &lt;b&gt;</title>" in text and 'content="light dark"' in text
    assert not re.search(r"(?:src|href)=|url\(|@import", text)
    shown = html.unescape(re.sub(r"<[^>]+>", "", text.partition("<body>")[2]))
    plain = to_text(PLOTS["heatmap"], width=100).splitlines()
    assert all(line.strip() in shown for line in plain)


def test_pictures_have_the_figures_and_the_names_of_axes_that_the_screen_has(console: DebugConsole) -> None:
    view = console.execute("heatmap head.weight --log")
    assert view is not None
    text = to_svg(view)
    shown = " ".join(each.text or "" for each in XML.fromstring(text).iter())
    assert "dimension 0" in shown and "dimension 1" in shown and "powers of ten" in shown
    assert "μ" in shown and "head.weight" in shown


@pytest.mark.parametrize("signed", [False, True])
def test_a_heatmap_by_powers_of_ten_shows_small_values(signed: bool) -> None:
    row = [1.0, 1e-3, 1e-6, 1e-9, 0.0] + ([-1.0, -1e-6] if signed else [])
    plain = to_text(Plot("heatmap", (tuple(row),)), width=80).splitlines()[0]
    by_powers = to_text(Plot("heatmap", (tuple(row),), log=True), width=80)
    cells = by_powers.splitlines()[0].partition("│")[2]
    assert len(set(plain.partition("│")[2])) <= 3
    assert len(set(cells)) >= 4 and "1e-9" in by_powers and "powers of ten" in by_powers
    assert cells[6:8] != "  "  # 1e-9 is told from zero


def test_an_export_registers_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {".csv", ".html", ".json", ".pdf", ".png", ".svg"} <= {
        each.suffix for each in registry.all_exports()
    }
    monkeypatch.setattr(registry, "_exports", dict(registry._exports))

    @registry.export(".own")
    def write(view: View, path: Path) -> None:
        path.write_text("own")

    assert registry.find_export(".own").function is write  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="two exports want the suffix"):
        registry.export(".svg")(write)


# --- commands ----------------------------------------------------------------------------------------


@pytest.fixture
def console() -> DebugConsole:
    model = nn.Sequential()
    model.add_module("head", nn.Linear(4, 3))
    return DebugConsole(model, output=io.StringIO())


def answer(console: DebugConsole, line: str) -> str:
    view = console.execute(line)
    assert view is not None
    return to_text(view, width=200)


def test_export_writes_what_was_shown_last(console: DebugConsole, tmp_path: Path) -> None:
    assert "nothing was shown yet" in answer(console, f"export {tmp_path}/a.svg")
    answer(console, "heatmap head.weight")
    for suffix in ("svg", "png", "json", "csv", "html", "pdf"):
        assert answer(console, f"export {tmp_path}/a.{suffix}").startswith("✓")
        assert (tmp_path / f"a.{suffix}").stat().st_size > 50
    assert len(elements((tmp_path / "a.svg").read_text(), "cell")) == 12
    answer(console, "tree")
    assert answer(console, f"export {tmp_path}/a.svg").startswith("✓")
    assert "Linear" in (tmp_path / "a.svg").read_text()
    assert answer(console, f"export {tmp_path}/a.csv").startswith("✗ no plot and no table")
    assert answer(console, f"export {tmp_path}/a.png").startswith("✓")


def test_export_refuses_in_one_line(console: DebugConsole, tmp_path: Path) -> None:
    answer(console, "heatmap head.weight")
    said, _, known = answer(console, "export a.xyz").partition("; there are ")
    assert said == "✗ .xyz is unknown here" and {".csv", ".html", ".png", ".svg"} <= set(known.split(", "))
    assert known.split(", ") == sorted(known.split(", "))
    assert "without a suffix" in answer(console, "export a")
    assert "needs a file" in answer(console, "export")
    assert answer(console, f"export {tmp_path}/no/a.svg").startswith(f"✗ cannot write {tmp_path}/no/a.svg")
    assert answer(console, f"export {tmp_path}/a.onnx").startswith("✗ no call of a model is running here")


def test_an_export_without_its_extra_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    model = nn.Sequential(nn.Linear(2, 2))
    output = io.StringIO()
    lines = ["break 0", "continue", f"export {tmp_path}/a.onnx", "continue"]
    DebugConsole(model, commands=lines, output=output).run(torch.ones(1, 2))
    assert "✗ this needs an extra: pip install 'layerstep[onnx]'" in output.getvalue()


def test_heatmap_takes_dimensions_after_the_expression(console: DebugConsole) -> None:
    console.execute("import torch")
    assert "at [0, ·, ·]" in answer(console, "heatmap torch.arange(24.).view(2, 3, 4)")
    turned = answer(console, "heatmap torch.arange(24.).view(2, 3, 4) 2 0")
    assert "at [·, 0, ·]" in turned and sum("│" in line for line in turned.splitlines()) == 4
    assert "at [0, ·, ·]" in answer(console, "heatmap torch.ones(2, 3, 4) - 1 1 2")
    assert "has no dimension 5" in answer(console, "heatmap head.weight 0 5")
    assert "must differ" in answer(console, "heatmap head.weight 1 -1")
    assert "no tensor in 3" in answer(console, "heatmap 3")
    assert "no values on the meta device" in answer(console, "heatmap torch.empty(2, 2, device='meta')")


def test_heatmap_of_a_large_matrix_says_what_a_cell_is(console: DebugConsole) -> None:
    console.execute("import torch")
    text = answer(console, "heatmap torch.ones(64, 144)")
    assert "each cell is the mean of 2×2" in text and "all 1" in text


def test_hist_draws_and_tells(console: DebugConsole) -> None:
    console.execute("import torch")
    text = answer(console, "hist torch.linspace(0, 1, 1001) --bins 10")
    assert "█" in text and "50%" in text and "median 0.5" in text
    view = console.session.prompt.shown
    assert isinstance(view, Group) and isinstance(view.views[1], Plot)
    assert len(view.views[1].values[0]) == 10 and sum(view.views[1].values[0]) == 1001
    assert view.views[1].x[0] == 0 and view.views[1].x[-1] == 1
    log = console.execute("hist head.weight --log --exact")
    assert isinstance(log, Group) and isinstance(log.views[1], Plot) and log.views[1].log
    assert "1 not finite" in answer(console, "hist torch.tensor([1.0, 2.0, float('nan')])")
    assert "nothing to draw" in answer(console, "hist torch.empty(2, device='meta')")


def test_hist_refuses_in_one_line(console: DebugConsole) -> None:
    for line, words in {
        "hist head.weight --nosuch": "no option --nosuch",
        "hist head.weight --bins": "--bins needs a value",
        "hist head.weight --bins 0": "--bins takes 1 to 1000",
        "hist 3": "no tensor in 3",
        "hist": "nothing has stopped yet",
    }.items():
        said = answer(console, line)
        assert words in said and len(said.splitlines()) == 1 and said.startswith("✗"), said
