"""Exported pages in Chromium: they work, ask for nothing, and log no error, on light and dark screens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from browser import opened
from zoo import console_on, entry_named

PAGES = ("attention", "gradients", "a.doctor", "report", "tree")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of one training."""
    made = tmp_path_factory.mktemp("pages")
    torch.manual_seed(0)
    model = entry_named("gpt2").build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = "attention --tokens 'one two three four five six <b>seven'"
    looks = ["hist out", "heatmap out", "tree", "graph", tokens]
    pages = [f"export {made}/{name}.html" for name in PAGES]
    lines = ["grad record", "doctor on", "profile 2", "break transformer.h.1.attn if step == 6", "continue"]
    console, seen = console_on(model, [*lines, *looks, *pages, "delete", "continue"])
    with console:
        for _ in range(8):
            ids = torch.randint(0, 26, (2, 7))
            loss = nn.functional.cross_entropy(model(ids).logits.flatten(0, 1), ids.flatten())
            loss.backward()
            optimizer.step()
    assert seen.bugs == [] and seen.text.count("written to") == 5, seen.text
    return made


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", PAGES)
def test_pages_open_alone(folder: Path, name: str, dark: bool) -> None:
    with opened(folder / f"{name}.html", dark=dark) as page:
        assert len(page.inner_text("body")) > 100
        back, ink = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        assert back != ink
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
            "no sideways scroll"
        )


def test_tokens_heads_and_layers_of_attention_can_be_chosen(folder: Path) -> None:
    with opened(folder / "attention.html") as page:
        assert page.locator("#left li").count() == 7 and page.inner_text("#left li >> nth=6") == "<b>seven"
        page.hover("#left li >> nth=3")
        assert page.inner_text("#told").startswith("four (3) looks at: ")
        before = page.inner_text("#told")
        page.click("#heads label >> nth=1")
        page.hover("#left li >> nth=3")
        assert page.inner_text("#told") != before, "the mean of two heads"
        page.select_option("#layer", "1")
        page.hover("#left li >> nth=3")
        both = page.inner_text("#told")
        assert both.startswith("four (3)")
        for words, count in (("one head", 1), ("all heads", 2)):
            assert page.inner_text("#all") == words
            page.click("#all")
            assert page.locator("#heads input:checked").count() == count
        drawn = page.evaluate(
            "(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(x => x))"
            "(document.getElementById('lines'))"
        )
        assert drawn, "there are lines"


def test_the_slider_moves_through_the_steps(folder: Path) -> None:
    with opened(folder / "gradients.html") as page:
        assert page.inner_text("#step") == "training step 1"
        first = page.inner_text("#rows")
        page.fill("#at", "4")
        assert page.inner_text("#step") == "training step 5" and page.inner_text("#rows") != first
        page.click("#play")
        page.wait_for_function("document.getElementById('step').textContent === 'training step 6'")
        page.wait_for_function("document.getElementById('play').textContent === 'play'")


def test_the_report_shows_its_pictures(folder: Path) -> None:
    with opened(folder / "report.html") as page:
        assert page.evaluate("document.images[0].complete && document.images[0].naturalWidth > 100")
        assert page.locator("svg").count() >= 2 and page.locator("section.stop").count() == 1
