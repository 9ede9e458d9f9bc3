"""Pages that are made of the code must be what the code says now; `make docs` brings them up to date."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from layerstep.demo.tour import STEPS
from play import read_transcript

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert SPEC is not None and SPEC.loader is not None
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)


@pytest.mark.parametrize("name", sorted(generate.PAGES))
def test_a_generated_page_is_not_stale(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == generate.PAGES[name](), "run: python docs/generate.py"


def test_the_tutorial_is_the_tour() -> None:
    _, typed, _ = read_transcript(ROOT / "tests" / "transcripts" / "first-session.txt")
    assert typed == [line for _, line in STEPS]


def test_links_between_files_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_names_only_commands_that_exist() -> None:
    from layerstep.registry import find_command

    table = (ROOT / "README.md").read_text().partition("| to | type |")[2].partition("\n\n")[0]
    for text in re.findall(r"`([a-z?-]+)(?: [^`]*)?`", table):
        if text not in ("type",):
            assert find_command(text) is not None, text
