"""`replay`: a forward that is over, run again on copies."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from zoo import console_on, differences


def train(lines: list[str] | None) -> tuple[dict[str, Any], str]:
    torch.manual_seed(0)
    parts = {"lin": nn.Linear(4, 8), "norm": nn.BatchNorm1d(8), "act": nn.ReLU(inplace=True)}
    model = nn.Sequential(OrderedDict({**parts, "drop": nn.Dropout(0.5)}))
    x = torch.randn(6, 4)
    seen: list[torch.Tensor] = []
    model.norm.register_forward_hook(lambda module, args, output: seen.append(output.detach().clone()))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def steps() -> None:
        for _ in range(2):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    text = ""
    if lines is None:
        steps()
    else:
        console, shown = console_on(model, lines)
        with console:
            steps()
        text = shown.text
    return {**model.state_dict(), "stream": torch.get_rng_state(), "norms": seen}, text


LINES = ["replay on", "break lin backward", "continue"]


def test_a_replay_shows_the_calls_of_the_forward_and_changes_nothing() -> None:
    bare, _ = train(None)
    lines = ["replay", "replay until norm", "perturbed?", "continue", "replay"]
    state, text = train([*LINES, *lines, "delete", "continue"])
    assert differences(bare, state) == []
    assert "forward 1 again, on copies: 5 calls" in text and "BatchNorm1d  f32[6, 8]  f32[6, 8]" in text
    assert "norm  done  BatchNorm1d  forward 1  replay" in text and "✓ no: random streams" in text
    assert "forward 2 again, on copies: 5 calls; the weights are those of now" in text


def test_a_replay_gives_what_the_run_had() -> None:
    kept, _ = train(None)
    lines = ["replay until norm", "format(norm.output.double().sum().item(), '.12g')", "delete", "continue"]
    _, text = train([*LINES, *lines])
    assert format(kept["norms"][0].double().sum().item(), ".12g") in text


def test_what_was_not_kept_is_told() -> None:
    for lines, answer in (
        (["break lin backward", "continue", "replay"], "`replay on` keeps it, from the next one on"),
        ([*LINES, "replay 7"], "only the last forward is kept, and that is 1"),
        ([*LINES, "replay off", "replay"], "was not kept"),
        ([*LINES, "replay until nosuch"], "no module"),
    ):
        bare, _ = train(None)
        state, text = train([*lines, "delete", "continue"])
        assert answer in " ".join(text.split()), lines
        assert differences(bare, state) == []


def test_a_replay_leaves_no_global_hook() -> None:
    """Torch keeps a table of hooks that want keyword arguments, and does not clean it up."""
    from torch.nn.modules import module

    train([*LINES, "replay", "delete", "continue"])
    tables = {name: value for name, value in vars(module).items() if name.startswith("_global_forward")}
    assert tables and not any(tables.values())
