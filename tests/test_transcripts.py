"""Golden transcripts: what is typed and exactly what the screen shows. `pytest --update` rewrites them.

One whose first line says so is kept at 120 columns and in colour, too, in the folders `wide` and `colour`.
Where it says `times as #`, measured numbers are masked; where `alone`, the tensors of other tests are hidden.
"""

from __future__ import annotations

import gc
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerstep.render.screen import make_console, to_text
from layerstep.views import Column, Group, Notice, Table, Text
from masked import masked
from play import play, read_transcript, script_named

FOLDER = Path(__file__).parent / "transcripts"
TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))
ALSO = ", also at 120 columns and in colour"
MASKED = ", times as #"
ALONE = ", alone"
TWICE = [path for path in TRANSCRIPTS if ALSO in path.read_text().partition("\n")[0]]
CASES = [(path, "") for path in TRANSCRIPTS]
CASES += [(path, look) for path in TWICE for look in ("wide", "colour")]


def shown(path: Path, look: str) -> str:
    name, typed, _ = read_transcript(path)
    mask = MASKED in path.read_text().partition("\n")[0]
    if look != "colour":
        return play(script_named(name), typed, width=120 if look == "wide" else 80, mask=mask)[0]
    console = make_console(io.StringIO(), width=80, colour=True)
    return play(script_named(name), typed, console=console, keep_colour=True, mask=mask)[0]


@pytest.fixture
def _alone(path: Path) -> Iterator[None]:
    """A census goes through all objects but those that are frozen."""
    if ALONE in path.read_text().partition("\n")[0]:
        gc.collect()
        gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("path, look", CASES, ids=lambda value: getattr(value, "stem", value))
def test_the_screen_shows_what_the_transcript_says(
    path: Path, look: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    screen = shown(path, look)
    head = path.read_text().partition("\n")[0]
    kept = path.parent / look / path.name
    if request.config.getoption("--update"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(f"{head}\n{screen}\n")
    else:
        assert screen == kept.read_text().partition("\n")[2].strip("\n")


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 12
    assert sum(look == "colour" for _, look in CASES) >= 5


def report(*rows: tuple[str, str, str], columns: str = "module own_ms %", note: str = "") -> str:
    names = [Column(name.replace("_", " ")) for name in columns.split()]
    return to_text(masked(Group((Table(tuple(names), rows, note=note), Notice(note)))))


def test_masks_hide_times_and_nothing_else() -> None:
    slow, fast, tiny, least = (
        ("a", "98.1", "80.3"),
        ("b", "9.87", "19.1"),
        ("d", "0.1", "0.3"),
        ("c", "0.2", "0.3"),
    )
    text = report(slow, fast, tiny, least, note="median 12.4 ms, half of them in 9.8–10.2, 3 steps")
    assert text == report(
        ("a", "101", "75.0"),
        ("b", "10.1", "24.4"),
        least,
        tiny,
        note="median 9 ms, half of them in 9–101, 3 steps",
    )
    assert "median # ms, half of them in #, 3 steps" in text
    assert text != report(slow, tiny, least, note="median 1 ms"), "a row is missing"
    assert report(fast, slow) != report(slow, fast), "what differs clearly has an order"
    assert report(slow) != report(("b", *slow[1:])) and report(slow) != report((slow[0], "", slow[2]))
    assert report(slow) != report(slow, columns="module own_s %"), "a time of another name is no time"
    assert report(slow, note="4 steps") != report(slow, note="5 steps")


def test_masks_of_bars_keep_their_lines() -> None:
    def flame(share: int, name: str) -> str:
        return f"{'█' * (share * 40 // 100):<41} {share:3}% {name}"

    def shown(*lines: str) -> str:
        return to_text(masked(Text("\n".join(lines))))

    assert shown(flame(90, "model"), flame(60, "  a"), flame(2, "  b")) == "# #% model\n# #%   a"
    assert shown(flame(90, "model"), flame(30, "  a")) == "# #% model\n# #%   a"
    assert shown(flame(90, "model"), flame(30, "  c")) != "# #% model\n# #%   a"
