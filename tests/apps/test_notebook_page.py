"""The HTML of a notebook's answers in Chromium: a click sorts a table, and nothing is loaded."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from layerstep.render.interactive_html import STYLE, to_interactive_html
from layerstep.views import Column, Figure, Node, Plot, Table, Tree, View

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

TABLE = Table(
    (Column("module", "path"), Column("bytes", right=True)),
    (
        ("a", Figure("2 KiB", 2048.0)),
        ("b", Figure("900 B", 900.0)),
        ("c", "-"),
        ("d", Figure("1 MiB", 2.0**20)),
    ),
)


def document(folder: Path, view: View, script: str) -> str:
    """The document after a script of the reader; errors of scripts are in it too."""
    assert CHROMIUM is not None
    page = folder / "page.html"
    page.write_text(
        "<meta charset=utf-8><body><script>onerror = text => document.body.append('FAILED ' + text)</script>"
        f'{STYLE}<div class="layerstep">{to_interactive_html(view)}</div><script>{script}</script>',
        encoding="utf-8",
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    body = done.stdout[done.stdout.index("<body") :]
    assert "FAILED" not in re.sub("<script>.*?</script>", "", body, flags=re.DOTALL), body
    return body


def order(page: str) -> list[str]:
    return re.findall(r'<td class="path">(\w)</td>', page)


@pytest.mark.parametrize(
    ("clicks", "expected"),
    [([], "abcd"), ([1], "cbad"), ([1, 1], "dabc"), ([1, 0], "abcd"), ([0, 0], "dcba")],
)
def test_a_click_on_a_heading_sorts(tmp_path: Path, clicks: list[int], expected: str) -> None:
    script = "".join(f"document.querySelectorAll('th')[{column}].click();" for column in clicks)
    assert "".join(order(document(tmp_path, TABLE, script))) == expected


def test_a_tree_unfolds(tmp_path: Path) -> None:
    inner = Node("b", children=(Node("c", children=(Node("d"),)),))
    tree = Tree(Node("a", children=(inner,)))
    closed = "document.querySelectorAll('details:not([open])').length"
    page = document(
        tmp_path,
        tree,
        f"let n = {closed}; document.querySelectorAll('summary')[2].click();"
        f"document.body.append(n + '>' + {closed})",
    )
    assert "1&gt;0" in page


def test_the_style_of_a_plot_stays_in_it(tmp_path: Path) -> None:
    plot = Plot("histogram", ((1.0, 2.0),), x=(0.0, 1.0, 2.0))
    script = """
    document.body.style.color = 'rgb(1, 2, 3)';
    let plot = getComputedStyle(document.querySelector('.layerstep-plot text')).fill;
    let other = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
    document.body.append(other);
    document.body.append(`COLOURS ${plot} ${getComputedStyle(other).backgroundColor}`)
    """
    assert "COLOURS rgb(1, 2, 3) rgba(0, 0, 0, 0)" in document(tmp_path, plot, script)
