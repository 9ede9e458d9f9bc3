"""`export attention.html`: every layer of the model with its weights, in one file that asks for nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from zoo import console_on, differences, entry_named, hook_count, play, taps_on


def data_of(file: Path) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', file.read_text(), re.DOTALL
    )
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def export(model: nn.Module, args: tuple[Any, ...], where: str, file: Path, *lines: str) -> str:
    console, seen = console_on(model, [f"break {where}", "continue", *lines, f"export {file}", "continue"])
    with torch.no_grad():
        console.run(*args)
    assert seen.bugs == []
    return " ".join(seen.text.split())


def test_the_weights_are_those_of_the_model(tmp_path: Path) -> None:
    entry = entry_named("gpt2")
    model = entry.build().eval()
    tokens = torch.randint(0, 26, (2, 7))
    said = export(model, (tokens,), "transformer.h.1", tmp_path / "attention.html")
    assert "✓ written to" in said
    data = data_of(tmp_path / "attention.html")
    (group,) = data["attention"]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(tokens, output_attentions=True).attentions
    assert len(group["attn"]) == len(expected) == len(group["layer_names"])
    assert group["layer_names"][1] == "transformer.h.1.attn"
    for found, layer in zip(group["attn"], expected, strict=True):
        assert torch.allclose(torch.tensor(found), layer[0], atol=1e-4)
    assert group["left_text"] == group["right_text"] == [str(token) for token in tokens[0].tolist()]
    # what BertViz reads
    assert {"attention", "default_filter", "root_div_id", "layer", "heads", "include_layers"} <= set(data)
    assert data["include_layers"] == list(range(len(expected)))


def test_tokens_are_bounded_unless_asked_for_and_can_be_named(tmp_path: Path) -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1).eval()
    x = torch.randn(1, 140, 8)
    said = export(model, (x,), "layers.0.linear1", tmp_path / "a.attention.html")
    assert "the first 128 tokens, `config attention_tokens N` takes more" in said
    (group,) = data_of(tmp_path / "a.attention.html")["attention"]
    assert len(group["left_text"]) == len(group["attn"][0][0]) == len(group["attn"][0][0][0]) == 128
    assert group["left_out"] == 12
    named = "attention layers.0 --tokens [f'<b>{i}' for i in range(140)]"
    lines = ("config attention_tokens 200", named)
    export(model, (x,), "layers.0.linear1", tmp_path / "b.attention.html", *lines)
    text = (tmp_path / "b.attention.html").read_text()
    (group,) = data_of(tmp_path / "b.attention.html")["attention"]
    assert group["left_text"][139] == "<b>139" and "<b>139" not in text, "no token is markup"


def test_a_model_without_attention_is_one_line(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    said = export(model, (torch.ones(1, 2),), "0", tmp_path / "attention.html")
    assert "✗ no attention was seen in this model" in said and not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "mode"), [("gpt2", "train"), ("encoder", "train")])
def test_a_run_is_the_same_with_and_without(name: str, mode: str, tmp_path: Path) -> None:
    entry = entry_named(name)
    bare = play(entry, mode)
    lines = [f"break {entry.inner}", "continue", f"export {tmp_path}/attention.html", "perturbed?", "delete"]
    run = play(entry, mode, [*lines, "continue"])
    assert "written to" in run.seen.text
    assert differences(bare.state, run.state) == [] and run.seen.bugs == [] and not run.seen.is_perturbed
    assert not taps_on(run.model) and hook_count(run.model) == hook_count(bare.model)
