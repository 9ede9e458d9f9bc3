"""Netron and TensorBoard show what they were handed: their own servers, in Chromium."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from browser import served
from graph_models import usual_models
from zoo import console_on


def test_netron_shows_the_model_and_its_modules(tmp_path: Path) -> None:
    model, inputs = usual_models()["resnet"]
    file = tmp_path / "model.onnx"
    console, seen = console_on(model, ["break fc", "continue", f"export {file}", "continue"])
    console.run(*inputs)
    assert file.exists(), seen.text
    with served("netron", str(file), log=tmp_path / "log", cookie="consent") as page:  # or it asks for it
        page.wait_for_selector("#target g.node-item")
        shown = page.inner_text("#target").split()
        assert shown.count("Conv") == 8 and shown.count("Add") == 3 and "Gemm" in shown
        page.locator("#target g.node-item", has_text="Gemm").click()
        page.wait_for_selector("#sidebar >> text=NODE PROPERTIES")
        assert "['', 'fc', 'linear']" in page.inner_text("#sidebar")


def test_tensorboard_shows_numbers_the_graph_and_findings(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lines = ["record 0 --tensors", "grad record", "doctor on", "tbreak 2", "continue", "graph", "continue"]
    console, seen = console_on(model, lines, sinks=[f"tensorboard={tmp_path / 'runs'}"])
    with console:
        for _ in range(12):
            loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,)))
            loss.backward()
            optimizer.step()
    assert seen.bugs == [] and "records are in tensorboard" in seen.text, seen.text
    with served("tensorboard", "--logdir", str(tmp_path / "runs"), log=tmp_path / "log") as page:
        page.wait_for_selector("text=gradient_norm")
        page.click("text=GRAPHS")
        page.wait_for_selector("tf-graph-scene g.node >> text=Sequential", state="attached")  # a title
        page.click("text=TEXT")
        page.wait_for_selector("text=stale-gradients")
