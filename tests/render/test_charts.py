"""What plotext draws for us: any numbers, at any width, and nothing of the program's own is touched."""

from __future__ import annotations

import fcntl
import io
import math
import os
import re
import struct
import subprocess
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from layerstep.render.plain import SIMILAR
from layerstep.render.plot import MARKERS
from layerstep.render.screen import make_console, to_rich, to_text
from layerstep.views import Column, Group, Notice, Plot, Table, View

INF, NAN = math.inf, math.nan
WAVES = tuple(tuple(math.sin(i / 9 + k) for i in range(60)) for k in range(3))


class Latin(io.StringIO):
    encoding = "ascii"  # type: ignore[assignment]


def in_ascii(view: View, width: int = 80) -> str:
    file = Latin()
    make_console(file, width=width, colour=False).print(to_rich(view))
    return file.getvalue()


def body(plot: Plot, width: int = 60) -> list[tuple[str, str]]:
    """The label and the picture of each row."""
    lines = [line.replace("┤", "│").partition("│") for line in to_text(plot, width=width).splitlines()]
    return [(label.strip(), picture) for label, bar, picture in lines if bar]


# --- any numbers -------------------------------------------------------------------------------------

NUMBERS = st.floats() | st.sampled_from(
    [0.0, 5e-324, -5e-324, 1e-38, 1e38, -1e38, 1.7e308, -1.7e308, NAN, INF]
)
SERIES = st.lists(st.lists(NUMBERS, max_size=30), max_size=8)


@settings(deadline=None, max_examples=100)
@example(rows=[[5e-324], [], [NAN] * 3], kind="line", log=True, width=40, x=[])
@example(rows=[[1e-38, 1e38]], kind="line", log=True, width=80, x=[INF, 0.0])
@example(rows=[[-1.7e308, 1.7e308]], kind="line", log=False, width=1, x=[])
@example(rows=[[-1.7e308], [1.7e308]], kind="line", log=False, width=60, x=[1.7e308])
@example(rows=[[1.7e308]], kind="bar", log=True, width=60, x=[])
@example(rows=[[3.0] * 30], kind="histogram", log=True, width=7, x=[NAN] * 31)
@given(
    rows=SERIES,
    kind=st.sampled_from(["line", "histogram", "bar"]),
    log=st.booleans(),
    width=st.integers(1, 130),
    x=st.lists(NUMBERS, max_size=31),
)
def test_any_series_can_be_drawn(
    rows: list[list[float]], kind: Any, log: bool, width: int, x: list[float]
) -> None:
    names = tuple(f"series {index}" for index in range(len(rows)))
    plot = Plot(kind, tuple(map(tuple, rows)), x=tuple(x), names=names, x_label="step", y_label="B", log=log)
    for text in (to_text(plot, width=width), in_ascii(plot, width)):
        lines = text.splitlines()
        assert lines and all(cell_len(line) <= width for line in lines)
        assert "\x1b" not in text
        if width >= 40:
            assert len(lines) <= 60
    assert in_ascii(plot, width).isascii()


def test_the_words_of_an_axis_of_all_that_a_float_can_hold() -> None:
    labels = [label for label, _ in body(Plot("line", ((1e-38, 1.0, 1e38),), log=True)) if label]
    assert labels == ["1e26", "10G", "1e-6", "1e-22", "1e-38"]
    labels = [label for label, _ in body(Plot("line", ((-1.7e308, 1.7e308),))) if label]
    assert labels == ["1e308", "0", "-1e308"]


@pytest.mark.parametrize("values", [(2.0,), (NAN, 2.0, NAN), (2.0, NAN, 2.0), (2.0,) * 9])
def test_a_point_is_in_the_row_of_its_value(values: tuple[float, ...]) -> None:
    rows = [(label, picture) for label, picture in body(Plot("line", (values,))) if picture.strip()]
    assert [label for label, _ in rows] == ["2"]
    assert ("●" in rows[0][1]) == (len(values) < 9), "a dot of braille alone is hard to see"


def test_what_is_left_out_is_counted() -> None:
    assert "2 values left out: not finite\n" in to_text(Plot("line", ((1.0, NAN, INF, 2.0),), note="x"))
    assert "1 value left out: not finite, or not above zero" in to_text(Plot("line", ((1.0, 0.0),), log=True))
    assert "left out" not in to_text(Plot("line", ((1.0, 0.0),)))


def test_of_many_points_one_that_stands_out_is_seen_and_so_is_a_gap() -> None:
    flat = np.zeros(100_000)
    flat[50_000] = 1.0
    tops = body(Plot("line", (tuple(flat),)))[0]
    assert tops[0] == "1" and len(tops[1].split()) == 1
    flat[20_000:40_000] = NAN
    gapped = body(Plot("line", (tuple(flat),)))[-1]
    assert gapped[0] == "0" and len(gapped[1].split()) == 2
    flat[1::2] = NAN
    assert len(body(Plot("line", (tuple(flat),)))[-1][1].split()) == 2, "gaps that are narrower than a dot"


# --- any console -------------------------------------------------------------------------------------


def test_each_series_has_a_marker_of_its_own_in_ascii_too() -> None:
    plain = MARKERS.translate(SIMILAR)
    assert plain.isascii() and len(set(plain)) == len(MARKERS) == 10
    text = in_ascii(Plot("line", WAVES, names=("train", "val", "test")))
    assert "* train   x val   o test" in text
    assert all(text.count(marker) > 20 for marker in "*xo")


def test_bars_in_a_table_and_signs_show_in_ascii() -> None:
    table = Table((Column("norm"),), (("▁▄█",),))
    text = in_ascii(Group((table, Notice("done", level="good"))))
    assert text.isascii() and "_-#" in text and "+ done" in text


def test_a_dumb_terminal_has_the_width_that_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.delenv("COLUMNS", raising=False)
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 40, 0, 0))
    with os.fdopen(follower, "w") as file, os.fdopen(leader):
        assert make_console(file).width == 40
        assert make_console(file, width=70).width == 70
        monkeypatch.setenv("COLUMNS", "50")
        assert make_console(file).width == 50


def test_colours_are_those_of_the_terminal_and_nothing_has_a_background() -> None:
    file = io.StringIO()
    make_console(file, width=60, colour=True).print(to_rich(Plot("line", WAVES)))
    codes = re.findall(r"\x1b\[([0-9;]*)m", file.getvalue())
    assert set(codes) == {"0", "2", "36", "35", "33"}


def test_labels_do_not_touch_and_do_not_depend_on_the_order_of_a_set() -> None:
    code = (
        "from layerstep.render.screen import to_text; from layerstep.views import Plot\n"
        "for width in (12, 21, 40, 80):\n"
        "    x = tuple(i * 1234.5 for i in range(11))\n"
        "    print(to_text(Plot('line', (x, x[::-1]), x=x), width=width))\n"
        "    print(to_text(Plot('histogram', (x[1:],), x=x), width=width))"
    )
    shown = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in range(3)
    }
    assert len(shown) == 1
    labels = [line for line in shown.pop().splitlines() if not {*line} & {*"│┤└●"}]
    assert len(labels) == 8 and {*" ".join(labels).split()} <= {"0", *(f"{n}k" for n in range(13))}


# --- nothing else is touched -------------------------------------------------------------------------


def test_plotext_is_imported_for_the_first_chart_only() -> None:
    code = (
        "import sys; from layerstep.render.screen import to_text; from layerstep.views import Plot, Text\n"
        "def loaded(): print([m for m in ('plotext', 'matplotlib', 'PIL') if m in sys.modules])\n"
        "to_text(Text('x'))\n"
        "for kind in ('heatmap', 'sparkline'): to_text(Plot(kind, ((1.0, 2.0),)))\n"
        "loaded(); to_text(Plot('line', ((1.0, 2.0),))); loaded()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "['plotext']"] and not done.stderr


def test_a_figure_of_the_program_stays_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    import plotext

    plotext.clear_figure()
    plotext.plot_size(40, 10)
    plotext.plot([1, 2, 3], [3, 1, 2], label="mine")
    before = plotext.build()
    to_text(Plot("line", WAVES))
    to_text(Plot("histogram", ((1.0, 2.0),)))
    assert plotext.build() == before and "mine" in before
    plotext.clear_figure()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("columns", ["1", "30", "500"])
def test_the_size_of_the_terminal_does_not_count(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plot = Plot("line", WAVES)
    before = to_text(plot, width=100)
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", "2")
    assert to_text(plot, width=100) == before


def test_several_threads_draw_at_once() -> None:
    plots = [Plot("line", WAVES[: n % 3 + 1], names=("a", "b", "c")[: n % 3 + 1]) for n in range(40)]
    alone = [to_text(plot) for plot in plots]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(to_text, plots)) == alone
