"""What the Tab key offers: options, ops, members, files; and it runs no code of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerstep import DebugConsole
from layerstep.frontends.completion import Candidate, complete
from layerstep.registry import all_commands
from layerstep.source_lines.watcher import SourceLines


class Layer(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros(1))
        self.width = 4

    @property
    def risky(self) -> int:
        Layer.calls += 1
        raise RuntimeError("a property was asked")

    def __dir__(self) -> list[str]:
        Layer.calls += 1
        return []

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.proj(x) * self.scale
        return out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.h:
            x = layer(x)
        return x


def offered(*lines: str) -> list[list[Candidate]]:
    """The candidates for each line, at a stop."""
    model = Net()
    found: list[list[Candidate]] = []
    console = DebugConsole(model, commands=["break h.1.proj", "continue", "delete"])

    def listen(message: Any) -> None:
        if message.kind == "stop":
            found.extend(complete(console.session, line) for line in lines)

    console.session.listen(listen)
    console.run(torch.randn(2, 4))
    return found


def texts(line: str) -> list[str]:
    return [candidate.text for candidate in offered(line)[0]]


def test_every_declared_option_is_offered() -> None:
    lines, wanted = [], []
    for command in all_commands():
        for form in command.forms:
            options = {f"--{item.name}" for item in form.options if item.sign}
            first = form.arguments[:1] if form.usage and not form.names and len(command.forms) > 1 else ()
            if options:
                lines.append(" ".join([command.name, *form.names[:1], *("5" for _ in first), "--"]))
                wanted.append(options)
    assert len(lines) > 12
    for line, found, options in zip(lines, offered(*lines), wanted, strict=True):
        assert options == {candidate.text for candidate in found}, line
        assert all(candidate.length == 2 for candidate in found)


@pytest.mark.parametrize(
    "line, first",
    [
        ("profile rep", ["report"]),
        ("profile report --by ", ["module", "type", "op"]),
        ("profile report --by=t", []),
        ("activations --sort s", ["std", "saturated"]),
        ("stats out --sort b", ["bytes"]),
        ("info ", ["breaks", "locals", "models", "threads", "backward", "cost"]),
        ("step ", ["op", "line"]),
        ("grad record e", ["every"]),
        ("catch nan in h.0 f", ["forward"]),
        ("break h.0 b", ["backward"]),
        ("shadow fp64 in h.0.", ["h.0.proj"]),
        ("leaks o", ["on", "off"]),
    ],
)
def test_forms_choices_and_keywords_come_from_the_declaration(line: str, first: list[str]) -> None:
    assert texts(line)[: len(first)] == first


def test_an_option_is_offered_once() -> None:
    assert "--exact" not in texts("hist out --exact --") and "--log" in texts("hist out --exact --")


def test_names_that_the_session_keeps_are_offered() -> None:
    console = DebugConsole(nn.Linear(1, 1))
    console.execute("memory snapshot before")
    console.execute("watch 1 + 1")
    assert [one.text for one in complete(console.session, "memory diff ")] == ["before"]
    assert [one.text for one in complete(console.session, "unwatch ")][:1] == ["1"]


def test_options_are_offered_behind_other_words() -> None:
    assert "--sort" in texts("stats ** --s") and texts("heatmap out --l") == ["--log"]


def test_the_children_and_parameters_of_a_module_come_first() -> None:
    for head in ("model.h.0", "h.0"):
        found = [text.removeprefix(f"{head}.") for text in texts(f"print {head}.")]
        assert found[:3] == ["proj", "scale", "seen"], head
        assert {"input", "output", "training", "width", "forward"} <= set(found)
        assert len(found) == len(set(found)) and not any(name.startswith("_") for name in found)


def test_a_tensor_offers_what_tensors_have() -> None:
    for line in ("print out.", "print h.0.scale.", "print model.h.0.proj.weight."):
        found = [text.rpartition(".")[2] for text in texts(line)]
        assert found[:2] == ["shape", "dtype"] and "std()" in found and "std" not in found


def test_nothing_of_the_users_is_run() -> None:
    Layer.calls = 0
    offered("print model.h.0.", "print h.0.", "print model.h.0.risky.", "model.h.0.ri", "p h.0.risky.")
    assert Layer.calls == 0


def test_ops_are_offered_by_name() -> None:
    assert "op:softmax" in texts("break op:soft") and "op:scaled_dot_product_attention" in texts(
        "break op:sc"
    )


def test_files_are_offered_once_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.svg", "b.svg", "a.json"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    found = offered("export ")[0]
    assert [candidate.shown for candidate in found] == ["a.json", "a.svg", "b.svg", "folder/"]
    (one,) = offered(f"export {tmp_path}/b")[0]
    assert one.shown == "b.svg" and one.text == f"{tmp_path}/b.svg"


def test_files_and_lines_are_shown_whole(tmp_path: Path) -> None:
    script = tmp_path / "train.v2.py"
    script.write_text("x = 1\n\ny = 2\n")
    console = DebugConsole(nn.Linear(1, 1))
    console.session.instruments.get(SourceLines).script = str(script)
    files = [one for one in complete(console.session, "break train.v") if one.text.endswith(":")]
    own = [one for one in files if one.text == "train.v2.py:"]
    assert [one.shown for one in own] == ["train.v2.py:"]
    assert all(one.text.endswith(".py:") or one.text in ("type:", "op:") for one in files)
    lines = complete(console.session, "break train.v2.py:")
    assert [(one.shown, one.note) for one in lines] == [("1", "x = 1"), ("3", "y = 2")]


def test_settings_offer_their_values() -> None:
    assert texts("config theme ") == ["auto", "light", "dark", "plain"]
    assert texts("config pager o") == ["on", "off"]
