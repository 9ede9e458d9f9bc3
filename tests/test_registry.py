"""Commands that declare their arguments, names that clash, and groups that do not exist."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from torch import nn

from layerstep import DebugConsole, registry
from layerstep.arguments import Given, Number, Option, Rest, Word
from layerstep.engine.session import Session
from layerstep.render.screen import to_text
from layerstep.views import Text


@pytest.fixture(autouse=True)
def _own_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    registry.load()
    monkeypatch.setattr(registry, "_commands", dict(registry._commands))
    yield


def _answer(line: str) -> str:
    view = DebugConsole(nn.Linear(1, 1), output=io.StringIO()).execute(line)
    assert view is not None
    return to_text(view)


def test_a_command_gets_what_it_declares() -> None:
    @registry.command(
        "echo", group="self", args=(Word("WORD"), Option("times", Number("N", default=1))), examples=()
    )
    def echo(session: Session, given: Given) -> Text:
        """Say it again."""
        return Text(" ".join([given.word] * given.times))

    assert _answer("echo a --times 2") == "a a"
    assert _answer("echo") == "✗ echo needs WORD; usage: echo WORD [--times N]"
    assert "--times takes a number from 0, not 'many'" in _answer("echo x --times many")
    assert "no option --time; did you mean --times?" in _answer("echo x --time 3")
    assert "'y' is too much" in _answer("echo x y")


def test_a_command_may_read_its_line_itself() -> None:
    @registry.command("raw", group="self", args=Rest("TEXT"), examples=())
    def raw(session: Session, given: Given) -> Text:
        """Say the line."""
        return Text(given.text)

    assert _answer("raw --what  'is typed") == "--what  'is typed"


def test_two_commands_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="two commands want the name 'step'"):
        registry.command("step", group="run", args=(), examples=())(lambda session, rest: None)


def test_a_group_must_exist() -> None:
    with pytest.raises(ValueError, match="no command group 'nosuch'"):
        registry.command("new", group="nosuch", args=(), examples=())(lambda session, rest: None)
