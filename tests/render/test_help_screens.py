"""Help fits the screen, from 40 columns to 200: words and examples stay whole."""

from __future__ import annotations

import pytest

from layerstep.assembly import assemble
from layerstep.commands.help import flowing
from layerstep.config import Config
from layerstep.registry import all_commands
from layerstep.render.screen import to_text


def page(name: str, width: int) -> str:
    session = assemble(Config())
    answer = session.prompt.submit(f"help {name}".strip()).result()
    assert answer is not None
    return to_text(answer, width=width)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_help_breaks_no_word_and_no_example(width: int) -> None:
    for command in all_commands():
        text = page(command.name, width)
        lines = text.splitlines()
        assert all(len(line) <= width for line in lines), command.name
        assert "\\n" not in text, command.name
        words = set(text.split())
        wanted = [*command.help.split(), *" ".join(command.examples).split()]
        assert all(word in words for word in wanted if len(word) < width - 12), command.name
        shown = [line.strip().removeprefix("example").strip() for line in lines]
        for example in (line for each in command.examples for line in each.split("\n")):
            assert example in shown or len(example) > width - 12, (command.name, example)


def test_paragraphs_flow_and_lists_stay() -> None:
    text = "Shows it.\n\nThis goes\non here.\n`a`: one\nthing.\n`b`: another.\n\n    x = 1\n    y = 2"
    assert flowing(text) == (
        "Shows it.\n\nThis goes on here.\n`a`: one thing.\n`b`: another.\n\n    x = 1\n    y = 2"
    )


def test_a_wide_screen_is_used() -> None:
    assert max(map(len, page("grad", 200).splitlines())) > 150


def test_the_list_of_commands_fits() -> None:
    for width in (40, 80, 200):
        text = page("", width)
        assert all(len(line) <= width for line in text.splitlines())
        assert all(command.name in text for command in all_commands())


def test_help_shows_each_option_as_it_is_typed() -> None:
    text = page("edit", 80)
    assert "for N " in text and "--through " in text and "--for" not in text
    for command in all_commands():
        for option in (item for form in command.forms for item in form.options if item.help):
            assert option.usage[1:-1] in page(command.name, 200), (command.name, option.name)
