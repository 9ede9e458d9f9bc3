"""Pictures of a graph: lanes on the screen, DOT, Mermaid, SVG, and the files that hold them."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from graph_models import Gpt, RoutedExperts, usual_models
from layerstep import DebugConsole
from layerstep.graph import svg
from layerstep.graph.dot import to_dot
from layerstep.graph.lanes import lanes_view
from layerstep.graph.mermaid import to_mermaid
from layerstep.graph.model_graph import ModelGraph
from layerstep.graph.picture import Picture, picture_of
from layerstep.graph.svg import drawn_by_us, to_svg


def picture(model: nn.Module, *args: Any, by: str = "", **options: Any) -> Picture:
    return picture_of(DebugConsole(model, commands=[]).graph(*args, by=by), **options)


def gpt(blocks: int = 12, **options: Any) -> Picture:
    return picture(Gpt(blocks=blocks), torch.zeros(1, 5).long(), torch.arange(5), **options)


def rows(shown: Picture) -> list[tuple[str, ...]]:
    return [row[:3] for row in lanes_view(shown, most=100).rows]


def at_stop(model: nn.Module, inputs: tuple[Any, ...], where: str, *lines: str) -> str:
    text = io.StringIO()
    DebugConsole(model, commands=[f"break {where}", "continue", *lines, "continue"], output=text).run(*inputs)
    return text.getvalue()


def test_repeated_blocks_are_one_row() -> None:
    assert rows(gpt()) == [
        ("●─╮", "tokens", ""),
        ("○─│─╮", "positions", ""),
        ("○─┴─│─╮", "wte", "Embedding"),
        ("○───╯ │", "wpe", "Embedding"),
        ("●─────╯", "blocks.0…11", "12 × GptBlock"),
        ("●", "ln_f", "LayerNorm"),
        ("●", "head", "Linear"),
        ("●", "output", ""),
    ]


def test_two_levels_show_the_skips_in_a_block() -> None:
    found = rows(gpt(depth=2))
    assert ("    │", "blocks.0…11", "12 × GptBlock") in found or (
        "  │",
        "blocks.0…11",
        "12 × GptBlock",
    ) in found
    assert [(name.strip(), lanes) for lanes, name, _ in found if name.startswith("  ")] == [
        ("blocks.0.ln1", "● │"),
        ("blocks.0.qkv", "● │"),
        ("blocks.0.out", "● │"),
        ("blocks.0.drop", "● │"),
        ("add", "●─┴─╮"),
        ("blocks.0.ln2", "●   │"),
        ("blocks.0.mlp", "●   │"),
        ("add", "●───╯"),
    ]


def test_skips_of_a_unet_are_lanes() -> None:
    model, inputs = usual_models()["unet"]
    assert [(name, lanes) for lanes, name, _ in rows(picture(model, *inputs))] == [
        ("x", "●"),
        ("down1", "●─╮"),
        ("pool", "● │"),
        ("down2", "●─│─╮"),
        ("pool (2)", "● │ │"),
        ("middle", "● │ │"),
        ("up2", "●─│─╯"),
        ("up1", "●─╯"),
        ("output", "●"),
    ]


@pytest.mark.parametrize("name", ["gpt", "resnet", "unet", "recurrent", "experts"])
def test_one_level_fits_a_screen(name: str) -> None:
    model, inputs = usual_models()[name]
    text = at_stop(model, inputs, next(iter(dict(model.named_children()))), "graph")
    shown = text.partition("(layerstep) graph")[2].partition("(layerstep)")[0].splitlines()
    assert 5 < len(shown) < 24 and max(map(len, shown)) <= 80, text


def test_ten_thousand_modules_are_all_there_and_one_row() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)) for _ in range(2500)))
    graph = DebugConsole(model, commands=[]).graph(torch.zeros(1, 2))
    assert len(graph.calls) == 10_001
    assert rows(picture_of(graph, depth=1)) == [
        ("●", "input", ""),
        ("●", "0…2499", "2500 × Sequential"),
        ("●", "output", ""),
    ]


def test_parallel_experts_are_one_row() -> None:
    found = picture(RoutedExperts(), torch.randn(32, 6))
    (box,) = [box for box in found.boxes if box.repeats > 1]
    assert (box.name, box.repeats, box.outputs[0].shape) == ("experts.0…3", 4, (-1, 6))
    names = {each.key: each.name for each in found.boxes}
    assert {("x", box.name), ("router", box.name), (box.name, "norm")} <= {
        (names[each.source], names[each.target]) for each in found.edges
    }


def test_dense_connections_are_not_folded() -> None:
    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen = [x]
            for layer in self.layers:
                seen.append(layer(torch.stack(seen).sum(0)))
            return seen[-1]

    found = picture(Dense(), torch.randn(2, 4))
    assert [box.name for box in found.boxes] == ["x", *(f"layers.{n}" for n in range(5)), "output"]
    assert len(found.edges) == 5 + 4 + 3 + 2 + 1 + 1


def test_a_part_and_its_operations() -> None:
    found = gpt(blocks=2, path="blocks.1", ops=True)
    names = [box.name for box in found.boxes]
    assert names[0] == "blocks.0" and names[-1] == "output"
    assert "F.scaled_dot_product_attention" in names and "blocks.1.mlp" in names
    assert not any(name.startswith("blocks.0.") for name in names)


def _pictures() -> list[Picture]:
    odd = nn.ModuleDict({'a "quoted" <b> #1 `x` & | [y]': nn.Linear(4, 4)})
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 4))
    model.add_module("end", next(iter(odd.values())))
    model.add_module('a "q" <b> #1 & [y]', nn.ReLU())
    return [gpt(depth=2, by="time"), gpt(blocks=2, depth=9, ops=True), picture(model, torch.randn(2, 4))]


@pytest.mark.parametrize("number", range(3))
def test_our_svg_is_well_formed(number: int) -> None:
    shown = _pictures()[number]
    root = ElementTree.fromstring(drawn_by_us(shown))
    space = "{http://www.w3.org/2000/svg}"
    words = {each.text for each in root.iter(f"{space}text")}
    assert {box.name for box in shown.boxes if box.number == 1} <= words
    assert len([each for each in root.iter(f"{space}path") if each.get("marker-end")]) == len(shown.edges)


def test_colours_follow_the_figure() -> None:
    shown = gpt(depth=1, by="bytes")
    most = max(shown.boxes, key=lambda box: box.value or 0)
    assert f"{most.key} [label=" in to_dot(shown)
    (line,) = [line for line in to_dot(shown).splitlines() if line.strip().startswith(f"{most.key} [")]
    assert 'fillcolor="#f88166"' in line and "bytes" in line


_NODE = re.compile(r'  +[a-z]\w*(\["[^"]*"\]|\(\["[^"]*"\]\)|\(\("[^"]*"\)\))')
_LINK = re.compile(r'  [a-z]\w* -->(\|"[^"]*"\|)? [a-z]\w*')
_STYLE = re.compile(r"  style [a-z]\w* fill:#[0-9a-f]{6},color:#[0-9a-f]{6}")


@pytest.mark.parametrize("number", range(3))
def test_mermaid_keeps_to_its_grammar(number: int) -> None:
    shown = _pictures()[number]
    first, *lines = to_mermaid(shown).splitlines()
    assert first == "flowchart TD"
    open_now, links = 0, 0
    for line in lines:
        if re.fullmatch(r'  +subgraph f\d+ \["[^"]*"\]', line):
            open_now += 1
        elif line.strip() == "end":
            open_now -= 1
        else:
            assert any(each.fullmatch(line) for each in (_NODE, _LINK, _STYLE)), line
            links += bool(_LINK.fullmatch(line))
    assert open_now == 0 and links == len(shown.edges)


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@pytest.mark.parametrize("number", range(3))
def test_graphviz_reads_our_dot(number: int) -> None:
    shown = _pictures()[number]
    done = subprocess.run(["dot", "-Tplain"], input=to_dot(shown), capture_output=True, text=True, check=True)
    words = [line.split()[0] for line in done.stdout.splitlines()]
    assert words.count("node") == len(shown.boxes) and words.count("edge") == len(shown.edges)
    assert not done.stderr
    ElementTree.fromstring(to_svg(shown))


def test_without_graphviz_we_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = gpt()
    monkeypatch.setattr(svg.shutil, "which", lambda name: None)
    assert to_svg(shown) == drawn_by_us(shown)
    monkeypatch.setattr(svg.shutil, "which", lambda name: sys.executable + "-absent")
    assert to_svg(shown) == drawn_by_us(shown)


def test_exports_write_what_was_shown(tmp_path: Path) -> None:
    model, inputs = usual_models()["unet"]
    files = [tmp_path / f"model{suffix}" for suffix in (".dot", ".mmd", ".graph.svg", ".graph.json")]
    text = at_stop(model, inputs, "up1", "graph --by bytes", *(f"export {file}" for file in files))
    assert text.count("written to") == 4
    assert files[0].read_text().startswith('digraph "UNet"') and "bytes" in files[0].read_text()
    assert files[1].read_text().startswith("flowchart TD") and "style " in files[1].read_text()
    ElementTree.fromstring(files[2].read_text())
    graph = ModelGraph.from_json(files[3].read_text())
    assert graph.by == "bytes" and [call.path for call in graph.calls if call.parent == 0][-1] == "up1"


def test_an_export_alone_draws_this_stop(tmp_path: Path) -> None:
    model, inputs = usual_models()["unet"]
    at_stop(model, inputs, "up1", f"export {tmp_path / 'a.dot'}")
    assert "down1" in (tmp_path / "a.dot").read_text()


@pytest.mark.parametrize("suffix", [".dot", ".mmd", ".graph.svg", ".graph.json"])
def test_what_cannot_be_written_is_one_line(tmp_path: Path, suffix: str) -> None:
    model, inputs = usual_models()["unet"]
    taken = tmp_path / f"taken{suffix}"
    taken.mkdir()
    text = at_stop(model, inputs, "up1", f"export {tmp_path / 'absent' / 'a'}{suffix}", f"export {taken}")
    assert text.count("cannot write") == 2 and "Traceback" not in text
    assert os.listdir(tmp_path) == [taken.name]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = usual_models()["unet"]
    old = tmp_path / "a.dot"
    old.write_text("old")
    write = Path.write_text

    def full(path: Path, text: str, **options: Any) -> int:
        return write(Path("/dev/full") if path.parent != tmp_path else path, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    text = " ".join(at_stop(model, inputs, "up1", f"export {old}").split())
    assert "cannot write" in text and "No space left" in text
    assert old.read_text() == "old" and os.listdir(tmp_path) == ["a.dot"]


def test_bad_lines_are_one_line_with_a_hint() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    lines = ("graph unused", "graph nothing", "graph --depth 0", "graph --by colour", "graph --by grad")
    text = at_stop(Model(), (torch.randn(2, 4),), "used", *lines)
    for said in ("unused is not called in this forward", "nothing", "no module has a figure for `--by grad`"):
        assert said in text
    assert text.count("✗") == len(lines) and "Traceback" not in text
