"""Commands that parse their arguments, names that clash, and groups that do not exist."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator

import pytest
from torch import nn

from layerstep import DebugConsole, registry
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


def test_a_command_with_a_parser_gets_a_namespace() -> None:
    parser = registry.Arguments()
    parser.add_argument("word")
    parser.add_argument("--times", type=int, default=1)

    @registry.command("echo", group="self", usage="WORD [--times N]", parser=parser)
    def echo(session: Session, given: argparse.Namespace) -> Text:
        """Say it again."""
        return Text(" ".join([given.word] * given.times))

    assert _answer("echo 'a b' --times 2") == "a b a b"
    assert _answer("echo") == "✗ the following arguments are required: word; usage: echo WORD [--times N]"
    assert "invalid int value" in _answer("echo x --times many")
    assert "No closing quotation" in _answer("echo 'x")
    assert "unrecognized arguments: --nosuch" in _answer("echo x --nosuch")


def test_two_commands_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="two commands want the name 'step'"):
        registry.command("step", group="run")(lambda session, rest: None)


def test_a_group_must_exist() -> None:
    with pytest.raises(ValueError, match="no command group 'nosuch'"):
        registry.command("new", group="nosuch")(lambda session, rest: None)
