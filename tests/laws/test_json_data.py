"""`--json` carries data: where the run stands, and numbers as numbers."""

from __future__ import annotations

import json
import math

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
