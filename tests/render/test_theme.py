"""Colours: of the terminal's own palette, so that nothing is white on white; none where none is wanted."""

from __future__ import annotations

import io
import re

import pytest
from test_render import EVERY

from layerstep.assembly import assemble
from layerstep.config import Config
from layerstep.engine.messages import Message
from layerstep.frontends.output import Screen
from layerstep.frontends.terminal.style import style_named
from layerstep.render.screen import make_console, to_rich
from layerstep.render.theme import theme_named
from layerstep.views import Group, Notice, Plot, Source, Table, View

SOURCE = Source("m.py", 1, ("@deco", "def f(x: int) -> str:", "    return 'a' + f(x) * 2.5  # why"), 2)
TEXT: tuple[View, ...] = (*EVERY, SOURCE, Plot("line", ((1.0, 2.0),)), Plot("bar", ((1.0, -2.0),)))


def codes(view: View, theme: str = "auto", *, system: str = "truecolor") -> set[str]:
    """The colours that a view sets, as the numbers of escape sequences."""
    console = make_console(io.StringIO(), width=80, colour=True, theme=theme)
    console._color_system = {"truecolor": 3, "standard": 1}[system]  # type: ignore[assignment]
    console.print(to_rich(view))
    return set(re.findall(r"\x1b\[([\d;]+)m", console.file.getvalue()))  # type: ignore[attr-defined]


@pytest.mark.parametrize("theme", ["auto", "light", "dark"])
def test_text_has_colours_of_the_palette_only_and_never_white(theme: str) -> None:
    for view in TEXT:
        for code in codes(view, theme):
            numbers = [int(number) for number in code.split(";")]
            assert not {38, 48, 37, 47, 97, 107} & set(numbers), (view, code)
            assert not any(90 <= number <= 107 for number in numbers)


def test_a_heatmap_sets_both_colours_of_a_cell() -> None:
    for code in codes(Plot("heatmap", ((1.0, -2.0, 0.5),))):
        assert ("38;2;" in code) == ("48;2;" in code)


def test_a_plain_theme_has_no_escape_sequence_but_for_shape() -> None:
    assert codes(Group((Notice("said", "hint", "warn"), Table((), ()))), "plain") == set()


@pytest.mark.parametrize(
    ("given", "name"),
    [("0;15", "light"), ("15;0", "dark"), ("0;default;7", "light"), ("", "dark"), ("x", "dark")],
)
def test_auto_asks_the_terminal_for_its_background(
    given: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLORFGBG", given)
    assert theme_named("auto") is theme_named(name)
    assert theme_named("dark") is not theme_named("light")


def test_config_theme_changes_the_screen_at_once() -> None:
    session = assemble(Config())
    file = io.StringIO()
    screen = Screen(session, file, console=make_console(file, width=80, colour=True))
    lines = []
    for theme in ("dark", "light", "plain"):
        session.run.config = session.run.config.with_value("theme", theme)
        screen(Message("answer", Notice("said", level="warn")))
        lines.append(file.getvalue())
        file.seek(0)
        file.truncate()
    assert len(set(lines)) == 3
    assert lines[2] == "! said\n"


def test_the_typed_line_has_colours_of_the_palette_only() -> None:
    for theme in ("auto", "light", "dark", "plain"):
        for _, attributes in style_named(theme).style_rules:
            assert "#" not in attributes and "white" not in attributes
