"""`--json` carries data: where the run stands, and numbers as numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from layerstep.cli import main
from layerstep.render.json import to_json
from layerstep.tensors.format import human_bytes, number, share
from layerstep.views import Column, Table, Text
from play import _as_main

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
for _ in range(2):
    model(torch.ones(1, 3))
"""


def test_a_table_holds_numbers_whole() -> None:
    columns = (
        Column("path", "path"),
        Column("size", right=True),
        Column("mean", right=True),
        Column("n", right=True),
    )
    rows = (
        ("a", human_bytes(1_234_567), number(1 / 3), "1,234"),
        ("b", human_bytes(5), number(math.nan), "-"),
    )
    found = to_json(Table(columns, rows))
    assert found["columns"][1] == {"name": "size", "type": "number", "unit": "B"}
    assert [column["type"] for column in found["columns"]] == ["text", "number", "number", "number"]
    assert found["rows"] == [["a", 1_234_567, 1 / 3, 1234], ["b", 5, "nan", None]]


MEASURED = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 333), nn.ReLU(), nn.LayerNorm(333), nn.Linear(333, 10))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
"""
TABLES = (
    "profile report",
    "profile report --by type",
    "profile report --by op",
    "profile report --wide",
    "flops",
    "ops",
    "top out",
    "weights",
    "activations",
    "stats out",
    "hist out",
    "memory",
)


def test_every_number_of_a_table_reaches_json_whole(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """A column of numbers holds numbers, not `10.7k`, and not what the screen has rounded."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(MEASURED)
    lines = ["profile 3", "record **", "break 2", "ignore 2 5", "continue", *TABLES, "delete", "continue"]
    words = ["run", "--batch", "--json", "out.jsonl"]
    with _as_main():
        assert main([*words, *(word for line in lines for word in ("-e", line)), "train.py"]) == 0
    capsys.readouterr()
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    tables = {answer["line"]: _tables(answer["view"]) for answer in answers if answer["line"] in TABLES}
    assert set(tables) == set(TABLES)
    for line, found in tables.items():
        assert found, line
        for table in found:
            for column, cells in zip(table["columns"], zip(*table["rows"], strict=True), strict=True):
                if column["type"] == "number":
                    texts = [cell for cell in cells if isinstance(cell, str) and cell != "nan"]
                    assert not texts, (line, column["name"], texts)
    (wide,) = tables["profile report --wide"]
    names = [column["name"] for column in wide["columns"]]
    rows = {row[0]: dict(zip(names, row, strict=True)) for row in wide["rows"]}
    assert rows["3"]["params"] == 3340 and rows["3"]["FLOP"] == 2 * 8 * 333 * 10
    assert rows["1"]["saved"] == 4 * 8 * 333 and rows["2"]["saved"] == 4 * 8 * 2  # a mean and a scale a row
    own = [row["own ms"] for row in rows.values()]
    assert any(round(value, 4) != value for value in own)
    assert wide["columns"][names.index("saved")]["unit"] == "B"


def _tables(view: dict[str, Any]) -> list[dict[str, Any]]:
    if view["view"] == "table":
        return [view]
    inner = view.get("views") or [item for _, item in view.get("items", [])]
    return [table for each in inner for table in _tables(each)]


def test_a_text_that_is_a_number_has_it() -> None:
    assert to_json(Text(share(1, 3))) == {"view": "text", "text": "33%", "value": 100 / 3, "unit": "%"}
    assert to_json(Text("33%")) == {"view": "text", "text": "33%"}


def test_a_stop_is_told_as_data(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["run", "--batch", "--json", "out.jsonl", "-e", "break 0", "-e", "continue", "-e", "continue"]
    with _as_main():
        assert main([*words, "train.py"]) == 0
    capsys.readouterr()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    first, second = [line["stop"] for line in lines if line["kind"] == "stop"]
    assert (first["path"], first["module"], first["phase"], first["point"]) == ("0", "Linear", "exit", 1)
    assert (first["forward"], second["forward"], first["thread"]) == (1, 2, "MainThread")
    assert all("stop" not in line for line in lines if line["kind"] != "stop")
