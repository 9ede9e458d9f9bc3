"""What every command, rule of the house and public name must fulfil; read from the registry and the files."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import layerstep
from layerstep import DebugConsole
from layerstep.arguments import Rest
from layerstep.demo.model import TinyTransformer
from layerstep.errors import BadArguments
from layerstep.registry import Command, all_commands, find_command
from layerstep.render.json import to_line
from layerstep.render.screen import to_text
from layerstep.views import Notice

COMMANDS = all_commands()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_explains_itself(command: Command) -> None:
    assert command.summary.endswith(".") and len(command.summary) <= 60, command.summary
    assert command.examples, "a command needs an example"
    words = {word for example in command.examples for word in example.split()}
    assert words & {command.name, *command.aliases}


REFUSED = {
    "back": "there is no checkpoint to go back to",
    "history": "no history here: the program has other threads",
}
"""Examples that cannot work at that stop, in a process of pytest: the answer says why."""


def is_expected(command: Command, view: object) -> bool:
    if not (isinstance(view, Notice) and view.level == "error"):
        return True
    return command.name in REFUSED and view.text.startswith(REFUSED[command.name])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_examples_of_a_command_work(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each example is typed at a stop in the middle of the demo's model; each line shows something, no error.

    What resumes the run answers with nothing: the next stop is shown instead.
    """
    monkeypatch.chdir(tmp_path)
    for example in command.examples:
        torch.manual_seed(0)
        model = TinyTransformer().eval()
        lines = ["break blocks.1.norm1", "continue", *example.splitlines()]
        console = DebugConsole(model, commands=lines, output=io.StringIO())
        messages = []
        console.session.listen(messages.append)
        tokens = torch.randint(1, 64, (1, 5))
        try:
            with console:
                model(tokens)
                model(tokens)
        except SystemExit:
            assert command.name == "quit"
        for line in example.splitlines():
            answers = [message for message in messages if message.line == line]
            assert answers, f"{line!r} was not answered"
            for message in answers:
                assert is_expected(command, message.view), message.view
                text = to_text(message.view, width=80)
                assert text.strip() or command.group == "run"
                assert all(len(shown) <= 80 for shown in text.splitlines())
                data = json.loads(to_line(message.view, kind=message.kind))
                assert data["view"]["view"] == type(message.view).__name__.lower()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_examples_of_a_command_fit_its_declaration(command: Command) -> None:
    for line in (line for example in command.examples for line in example.splitlines()):
        word, _, rest = line.partition(" ")
        if word in (command.name, *command.aliases):
            command.parse(rest)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_option_is_explained(command: Command) -> None:
    for option in (item for form in command.forms for item in form.options):
        assert option.help or f"{option.sign}{option.name}" in command.help, option.name


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_an_unknown_option_is_one_line(command: Command) -> None:
    if any(isinstance(form.arguments[0], Rest) for form in command.forms if form.arguments):
        assert command.name in (
            "alias",
            "apropos",
            "help",
            "jump",
            "whatif",
        )  # these take their line raw
        return
    for word in ("", *(name for form in command.forms for name in form.names)):
        with pytest.raises(BadArguments) as caught:
            command.parse(f"{word} --nosuch")
        assert caught.value.hint and "\n" not in str(caught.value)


def test_every_command_names_its_values_apart() -> None:
    """Two arguments of a form that share a name would hide each other."""
    for command in COMMANDS:
        for form in command.forms:
            keys = [item.key for item in form.items]
            assert len(keys) == len(set(keys)), command.name
            assert not {"form", "typed"} & set(keys), command.name


def test_public_names_are_all_that_is_public() -> None:
    for name in layerstep.__all__:
        assert getattr(layerstep, name) is not None
    assert dir(layerstep) == layerstep.__all__
    with pytest.raises(AttributeError):
        _ = layerstep.nosuch


def test_engine_and_analysis_bring_no_screen_along() -> None:
    screens = ("rich", "prompt_toolkit", "pygments", "plotext", "IPython")
    rooms = "layerstep.engine.session, layerstep.tensors.summary, layerstep.tensors.present"
    code = f"import sys, {rooms}; print([m for m in {screens!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_layerstep_imports_nothing_heavy() -> None:
    heavy = ("torch", "rich", "prompt_toolkit", "numpy")
    code = f"import sys, layerstep; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unique_prefixes_and_aliases() -> None:
    assert find_command("cont").name == "continue"  # type: ignore[union-attr]
    assert find_command("s").name == "step"  # type: ignore[union-attr]
    assert find_command("nosuch") is None
