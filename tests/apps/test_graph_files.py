"""Graphviz and Mermaid read the graphs that we write: as many boxes and edges as the picture has."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from graph_models import usual_models
from layerstep import DebugConsole
from layerstep.graph.dot import to_dot
from layerstep.graph.mermaid import to_mermaid
from layerstep.graph.picture import picture_of

READER = Path(__file__).with_name("read_graph.mjs")
MODULES = Path(sys.prefix) / "share" / "graph" / "node_modules"


@pytest.mark.parametrize("suffix", [".dot", ".mmd"])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("name", ["gpt", "resnet", "unet", "recurrent", "experts"])
def test_other_tools_read_the_graph(name: str, depth: int, suffix: str, tmp_path: Path) -> None:
    model, inputs = usual_models()[name]
    with torch.no_grad():
        picture = picture_of(DebugConsole(model, commands=[]).graph(*inputs, by="bytes"), depth=depth)
    file = tmp_path / f"model{suffix}"
    file.write_text((to_dot if suffix == ".dot" else to_mermaid)(picture), encoding="utf-8")
    node = shutil.which("node")
    assert node is not None, "`make test-apps` needs node"
    done = subprocess.run([node, READER, MODULES, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"boxes": len(picture.boxes), "edges": len(picture.edges)}
