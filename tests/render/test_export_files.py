"""Exported files are whole or not there; what is exported as data is read back equal."""

from __future__ import annotations

import csv
import json
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from layerstep.graph.model_graph import ModelGraph
from layerstep.graph.tracing import LastPicture
from layerstep.registry import all_exports
from layerstep.render.json import to_json
from layerstep.views import Plot, Table
from zoo import console_on

NO_EXTRA = [each.suffix for each in all_exports() if each.extra in ("", "plots")]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.attention(x, x, x)[0]).mean(1)


def run_with(lines: list[str]) -> tuple[list[torch.Tensor], Any]:
    """Train under the debugger; the lines are typed at a stop in the fifth step."""
    torch.manual_seed(0)
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = ["grad record", "doctor on", "profile 2", "break head if step == 5", "continue"]
    console, seen = console_on(model, [*before, *lines, "delete", "continue"])
    losses = []
    with console:
        for _ in range(7):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(torch.randn(4, 5, 8)), torch.randint(0, 3, (4,)))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    assert seen.bugs == []
    return losses, seen


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """No file may grow beyond this, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def bare() -> list[torch.Tensor]:
    return run_with([])[0]


def test_every_export_is_written_and_replaces_a_file(tmp_path: Path, bare: list[torch.Tensor]) -> None:
    for suffix in NO_EXTRA:
        (tmp_path / f"a{suffix}").write_text("old")
    losses, seen = run_with(["graph", "hist out", *(f"export {tmp_path}/a{suffix}" for suffix in NO_EXTRA)])
    assert all(map(torch.equal, losses, bare))
    assert {file.name for file in tmp_path.iterdir()} == {f"a{suffix}" for suffix in NO_EXTRA}
    for suffix in NO_EXTRA:
        data = (tmp_path / f"a{suffix}").read_bytes()
        assert data != b"old" and len(data) > 60, (suffix, seen.text)


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, bare: list[torch.Tensor]) -> None:
    for suffix in NO_EXTRA:
        (tmp_path / f"old{suffix}").write_text("old")
    names = [f"{name}{suffix}" for suffix in NO_EXTRA for name in ("new", "old")]
    with full_after(100):
        losses, seen = run_with(["graph", "hist out", *(f"export {tmp_path}/{name}" for name in names)])
    assert all(map(torch.equal, losses, bare)), "the run goes on"
    text = joined(seen.text)
    for name in names:
        assert joined(f"✗ cannot write {tmp_path}/{name}; File too large") in text, name
    assert {file.name for file in tmp_path.iterdir()} == {f"old{suffix}" for suffix in NO_EXTRA}
    assert all(file.read_text() == "old" for file in tmp_path.iterdir())


def joined(text: str) -> str:
    """Without the breaks of the screen."""
    return "".join(text.split())


def test_places_that_cannot_be_written_are_one_line(tmp_path: Path, bare: list[torch.Tensor]) -> None:
    (tmp_path / "folder.json").mkdir()
    places = {
        "/sys/kernel/a.json": "",
        f"{tmp_path}/no/a.json": "No such file or directory",
        f"{tmp_path}/folder.json": "Is a directory",
        f"{tmp_path}/{'a' * 300}.json": "File name too long",
    }
    losses, seen = run_with(["hist out", *(f"export {place}" for place in places)])
    assert all(map(torch.equal, losses, bare))
    text = joined(seen.text)
    for place, why in places.items():
        assert joined(f"✗ cannot write {place}; {why}") in text, place
    assert [file.name for file in tmp_path.iterdir()] == ["folder.json"]


def test_data_is_read_back_equal(tmp_path: Path) -> None:
    lines = ["hist out", "stats --params", "heatmap head.weight", "tree", "where"]
    typed = [each for at, line in enumerate(lines) for each in (line, f"export {tmp_path}/{at}.json")]
    views: dict[str, Any] = {}

    torch.manual_seed(0)
    model = Small()
    console, _ = console_on(model, ["break head", "continue", *typed, "continue"])

    def keep(message: Any) -> None:
        if message.line in lines:
            views[message.line] = message.view

    console.session.listen(keep)
    console.run(torch.randn(4, 5, 8))
    for at, line in enumerate(lines):
        read = json.loads((tmp_path / f"{at}.json").read_text(encoding="utf-8"))
        assert read["layerstep"] == 2 and read["view"] == json.loads(json.dumps(to_json(views[line]))), line


def test_numbers_and_words_of_a_csv_are_read_back_equal(tmp_path: Path) -> None:
    from layerstep.registry import find_export
    from layerstep.views import Column

    write = find_export(".csv").write  # type: ignore[union-attr]
    values = (0.1, -1e-300, 3.0e38, math.pi, math.nan, math.inf)
    write(Plot("line", (values,), x=tuple(map(float, range(6)))), tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    assert np.array_equal([float(row[1]) for row in rows], values, equal_nan=True)
    cells = (("a,b", '"quoted"'), ("two\nlines", "ünïcode →"), ("", "=1+1"))
    write(Table((Column("one"), Column("two")), cells), tmp_path / "b.csv")
    with (tmp_path / "b.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file))[1:] == [list(row) for row in cells]


def test_a_graph_is_read_back_equal(tmp_path: Path) -> None:
    console, _ = console_on(Small(), ["break head", "continue", "graph", f"export {tmp_path}/a.graph.json"])
    console.run(torch.randn(4, 5, 8))
    kept = console.session.instruments.get(LastPicture).graph
    assert ModelGraph.from_json((tmp_path / "a.graph.json").read_text()) == kept


def test_the_animation_has_a_frame_for_each_step(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    run_with([f"export {tmp_path}/a.gif", f"export {tmp_path}/a.gradients.html"])
    with image.open(tmp_path / "a.gif") as read:
        assert read.format == "GIF" and read.n_frames == 5 and read.info["loop"] == 0
    text = (tmp_path / "a.gradients.html").read_text()
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["steps"] == [1, 2, 3, 4, 5] and data["layers"] == ["attention", "attention.out_proj", "head"]
    assert len(data["norms"]) == 5 and all(norm > 0 for row in data["norms"] for norm in row)
    low, high = data["bounds"]
    assert all(10**low <= norm <= 10**high for row in data["norms"] for norm in row)


def test_without_recorded_gradients_there_is_no_animation(tmp_path: Path) -> None:
    console, seen = console_on(Small(), ["break head", "continue", f"export {tmp_path}/a.gif", "continue"])
    console.run(torch.randn(4, 5, 8))
    assert "✗ no gradients are recorded" in seen.text and not list(tmp_path.iterdir())
