"""Pages in Chromium: a page may ask for nothing but itself, and may log no error."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def opened(file: Path, *, dark: bool = False, width: int = 1000) -> Iterator[Any]:
    """A page of ours in a browser. At the end: it has asked for nothing, and nothing went wrong."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    assert path is not None, "`make test-apps` needs chromium"
    arguments = ["--no-sandbox", "--disable-background-networking", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=arguments)
        try:
            scheme = "dark" if dark else "light"
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            asked: list[str] = []
            wrong: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("console", lambda said: wrong.append(said.text) if said.type != "log" else None)
            page.goto(file.as_uri())
            yield page
            assert [url for url in asked if url != file.as_uri() and not url.startswith("data:")] == []
            assert wrong == []
        finally:
            browser.close()
