"""Pages that are made of the code must be what the code says now; `make docs` brings them up to date."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from rich.text import Text

from layerstep.demo.tour import STEPS
from layerstep.frontends.output import PROMPT
from layerstep.side_effects import reachable
from play import play, read_transcript, script_named

pytestmark = pytest.mark.own_process(rounds_alike=True)

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert SPEC is not None and SPEC.loader is not None
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)


@pytest.mark.parametrize("name", sorted(generate.PAGES))
def test_a_generated_page_is_not_stale(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "MOST", 10**7)  # the frames of pytest reach what other tests have made
    assert (ROOT / "docs" / name).read_text() == generate.PAGES[name](), "run: python docs/generate.py"


PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


@pytest.mark.parametrize("path", generate.pages_with_blocks(), ids=lambda path: path.stem)
def test_the_marked_blocks_of_a_page_are_not_stale(path: Path) -> None:
    page = path.read_text()
    assert page == generate.with_blocks(page), "run: python docs/generate.py"


def test_no_page_needs_a_builder_to_be_read() -> None:
    for path in PAGES:
        page = path.read_text()
        assert "--8<--" not in page, path.name
        assert page.count("<!-- end of ") == len(generate.BLOCK.findall(page)), path.name
    with_a_session = [path for path in PAGES if "<!-- transcript: " in path.read_text()]
    assert len(with_a_session) >= 6
    assert all("```text\n" in path.read_text() for path in with_a_session)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_no_page_shows_both_sides_of_a_merge(path: Path) -> None:
    assert not re.search(r"^(<<<<<<<|>>>>>>>) ", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_what_people_paste_has_no_annotations(path: Path) -> None:
    page = generate.BLOCK.sub("", path.read_text())
    for kind, block in re.findall(r"^```(text|console|bash)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            is_typed = kind != "text" or line.startswith(PROMPT)
            assert not (is_typed and re.search(r"\S {3,}\S| # ", line)), line


HARD_WORDS = r"(?i)\b(nobody|somebody|anybody|beside|inside of|outside of|in want of|hears? of)\b"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_pages_are_in_plain_words(path: Path) -> None:
    page = path.read_text()
    if not page.startswith("<!-- "):  # pages that are made have the words of the source
        assert re.findall(HARD_WORDS, generate.BLOCK.sub("", page)) == []


def test_the_tutorial_is_the_tour() -> None:
    _, typed, _ = read_transcript(ROOT / "tests" / "transcripts" / "first-session.txt")
    assert typed == [line for _, line in STEPS]


def test_pictures_load_nothing_from_elsewhere_and_stay_small() -> None:
    pictures = sorted((ROOT / "docs" / "assets").rglob("*.svg"))
    for path in pictures:
        text = path.read_text()
        assert not re.search(r"@import|@font-face|<script|href=|url\((?!#)", text), path.name
    assert sum(path.stat().st_size for path in pictures) < 1_500_000


def test_no_picture_of_the_gallery_shows_an_error_or_is_left_over() -> None:
    made = {path.removeprefix("assets/gallery/") for path in generate.PAGES if "gallery/" in path}
    assert {path.name for path in (ROOT / "docs" / "assets" / "gallery").iterdir()} == made
    for name in generate.gallery.SCENES:
        lines = Text.from_ansi(generate.gallery.screen(name)).plain.splitlines()
        assert lines[0].startswith(PROMPT) and len(lines) > 1, name
        assert not any(line.startswith("✗") for line in lines), name


def sessions_of(page: str) -> list[tuple[str, list[str]]]:
    """The scripts that a page runs, each with the lines that it types, in blocks and in tables."""
    sessions: list[tuple[str, list[str]]] = []
    is_typed = False  # the rows of a table under `line`
    for line in (ROOT / "docs" / page).read_text().splitlines():
        is_typed = line.startswith("| line |") or (is_typed and line.startswith("|"))
        if line.startswith("layerstep run "):
            sessions.append((line.split()[-1], []))
        elif line.startswith(PROMPT):
            sessions[-1][1].append(line.removeprefix(PROMPT))
        elif is_typed and (typed := re.match(r"\| `(.*?)` \|", line)):
            sessions[-1][1].append(typed[1].replace(r"\|", "|"))
    return sessions


@pytest.mark.parametrize(
    "script, lines", sessions_of("how-to/inspecting.md") + sessions_of("how-to/graph.md")
)
def test_the_lines_of_pages_work(
    script: str, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = script_named("demo") if script == "layerstep.demo.script" else ROOT / script
    screen, _ = play(path, [*lines, "quit"])
    for line in lines:
        answer = screen.partition(PROMPT + line + "\n")[2].partition("\n" + PROMPT)[0]
        assert answer and not answer.startswith("✗"), line


def code_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text().partition("```python\n")[2].partition("```")[0]


def test_the_code_about_inspecting_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code_of("how-to/inspecting.md"), "inspecting.md", "exec"), {})
    assert "the second is the first after a round trip through bf16" in capsys.readouterr().out


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_files_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        for target, anchor in re.findall(r"\]\(([^)#:]+)(?:#([^)]*))?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors_of(page.parent / target), f"{page.name}: {target}#{anchor}"


def test_the_architecture_names_every_file_and_no_other() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    source = ROOT / "src" / "layerstep"
    named = []
    for section in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        folder = "" if title == "Files in no folder" else title.strip("`")
        if folder == "" or folder.endswith("/"):
            named += [folder + "__init__.py"] if folder else []
            named += [folder + name for name in re.findall(r"^\| `(\w+\.py)` \|", body, re.MULTILINE)]
    assert sorted(named) == sorted(path.relative_to(source).as_posix() for path in source.rglob("*.py"))


def test_the_files_that_a_page_speaks_of_exist() -> None:
    source = ROOT / "src" / "layerstep"
    for path in PAGES:
        page = generate.BLOCK.sub("", path.read_text())
        for name in re.findall(r"`((?:\w+/)+\w*(?:\.py)?)`", page):
            is_there = (ROOT / name).exists() or (source / name).exists()
            assert is_there or name in MADE_UP, (path.name, name)


MADE_UP = {
    "cores/",
    "site/",
    "src/layerstep/commands/large.py",
    "src/layerstep/commands/norms.py",
    "src/layerstep/commands/rates.py",
    "src/layerstep/exports/markdown.py",
    "src/layerstep/rules/batch_of_one.py",
    "tests/rules/cases/batch_of_one.py",
    "src/layerstep/rates/",
    "tests/rates/",
}


def test_the_home_page_leads_to_every_page() -> None:
    home = (ROOT / "docs" / "index.md").read_text()
    for path in (ROOT / "docs").rglob("*.md"):
        page = str(path.relative_to(ROOT / "docs"))
        assert page == "index.md" or f"({page})" in home, page


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md"))


def test_the_cheat_sheet_names_only_commands_that_exist() -> None:
    from layerstep.registry import find_command

    text = (ROOT / "docs" / "how-to" / "cheat-sheet.md").read_text()
    typed = [row for row in text.splitlines() if re.match(r"\| .+ \| .*\|$", row) and "layerstep " not in row]
    named = {word for row in typed for word in re.findall(r"`([a-z?-]+)(?: [^`]*)?`", row)}
    assert len(named) >= 45
    for word in sorted(named):
        assert find_command(word) is not None, word


def test_the_readme_is_short_and_its_screen_is_a_real_one() -> None:
    readme = (ROOT / "README.md").read_text()
    screen = readme.partition("```text\n")[2].partition("```")[0]
    assert "because" in screen and len(readme.split()) < 500
    assert screen in (ROOT / "tests" / "transcripts" / "fault-masked-row.txt").read_text()
