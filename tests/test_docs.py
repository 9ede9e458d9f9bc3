"""Pages that are made of the code must be what the code says now; `make docs` brings them up to date."""

from __future__ import annotations

import fnmatch
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text

from layerstep.demo.tour import STEPS
from layerstep.frontends.output import PROMPT
from play import play, read_transcript, script_named

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert SPEC is not None and SPEC.loader is not None
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)


@pytest.mark.parametrize("name", sorted(generate.PAGES))
def test_a_generated_page_is_not_stale(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == generate.PAGES[name](), "run: python docs/generate.py"


PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


@pytest.mark.parametrize("path", generate.pages_with_transcripts(), ids=lambda path: path.stem)
def test_a_page_shows_its_transcripts_as_they_are_now(path: Path) -> None:
    page = path.read_text()
    assert page == generate.with_transcripts(page), "run: python docs/generate.py"
    assert "(layerstep) " in page


def test_no_page_needs_a_builder_to_be_read() -> None:
    assert len(generate.pages_with_transcripts()) >= 6
    for path in PAGES:
        assert "--8<--" not in path.read_text(), path.name


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_what_people_paste_has_no_annotations(path: Path) -> None:
    page = generate.TRANSCRIPT.sub("", path.read_text())
    for kind, block in re.findall(r"^```(text|console)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            is_typed = kind == "console" or line.startswith(PROMPT)
            assert not (is_typed and re.search(r"\S {3,}\S| # ", line)), line


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


@pytest.mark.parametrize("script, lines", sessions_of("how-to/inspecting.md"))
def test_the_lines_about_inspecting_work(
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


def test_a_new_export_is_one_file(tmp_path: Path) -> None:
    """The file of the contributor guide, dropped beside the others, is a suffix that `export` knows."""
    (tmp_path / "markdown.py").write_text(code_of("contributing/adding-an-export.md"))
    script = (
        "import sys, torch, layerstep.exports\n"
        f"layerstep.exports.__path__.append({str(tmp_path)!r})\n"
        "from layerstep import DebugConsole\n"
        "from layerstep.demo.model import TinyTransformer\n"
        "lines = ['break head', 'continue', 'stats head --params', 'export head.md']\n"
        "lines += ['print 1', 'export no.md']\n"
        "console = DebugConsole(TinyTransformer().eval(), commands=lines, output=sys.stdout)\n"
        "console.run(torch.ones(1, 3, dtype=torch.long))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "✓ written to head.md" in done.stdout and "✗ no table was shown last" in done.stdout
    written = (tmp_path / "head.md").read_text()
    assert written.startswith("| tensor | shape |") and "head.weight" in written


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_files_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        for target, anchor in re.findall(r"\]\(([^)#:]+)(?:#([^)]*))?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors_of(page.parent / target), f"{page.name}: {target}#{anchor}"


def test_the_architecture_names_every_file() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    names = re.findall(r"`([\w*]+)`", page)
    rooms = re.findall(r"\w+", page.partition("```text\n")[2].partition("```")[0])
    source = ROOT / "src" / "layerstep"
    for path in sorted(source.rglob("*.py")):
        room = path.relative_to(source).parts
        is_listed_elsewhere = room[0] in ("commands", "demo") or "crash" in room
        if not is_listed_elsewhere and not path.stem.startswith("__"):
            assert any(fnmatch.fnmatch(path.stem, name) for name in (*names, *rooms)), "/".join(room)


def test_the_home_page_leads_to_every_page() -> None:
    home = (ROOT / "docs" / "index.md").read_text()
    for path in (ROOT / "docs").rglob("*.md"):
        page = str(path.relative_to(ROOT / "docs"))
        assert page == "index.md" or f"({page})" in home, page


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md"))


def test_the_readme_names_only_commands_that_exist() -> None:
    from layerstep.registry import find_command

    text = (ROOT / "README.md").read_text()
    for heading in ("| to | type |", "| ask | type |"):
        table = text.partition(heading)[2].partition("\n\n")[0]
        named = re.findall(r"`([a-z?-]+)(?: [^`]*)?`", table)
        assert named
        for word in named:
            assert find_command(word) is not None, word
