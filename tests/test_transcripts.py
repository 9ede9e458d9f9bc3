"""Golden transcripts: what is typed and exactly what the screen shows. `pytest --update` rewrites them."""

from pathlib import Path

import pytest

from play import play, read_transcript, script_named

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_screen_shows_what_the_transcript_says(path, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, typed, expected = read_transcript(path)
    screen, _ = play(script_named(name), typed)
    if request.config.getoption("--update"):
        path.write_text(f"# script: {name}\n{screen}\n")
    else:
        assert screen == expected


def test_there_are_transcripts():
    assert len(TRANSCRIPTS) >= 6
