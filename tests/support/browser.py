"""Pages in Chromium: a page may ask for nothing but itself, and may log no error."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def _chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    assert path is not None, "`make test-apps` needs chromium"
    arguments = ["--no-sandbox", "--disable-background-networking", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(file: Path, *, dark: bool = False, width: int = 1000) -> Iterator[Any]:
    """A page of ours in a browser. At the end: it has asked for nothing, and nothing went wrong."""
    with _chromium() as browser:
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


@contextlib.contextmanager
def served(program: str, *words: str, log: Path, cookie: str = "") -> Iterator[Any]:
    """A page on the server of another program, on a free port. It reaches that server alone.

    At the end: no script of it failed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = f"http://127.0.0.1:{port}/"
    command = [Path(sys.executable).with_name(program), *words, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        while not _answers(root):
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
        with _chromium() as browser:
            page = browser.new_page(viewport={"width": 1300, "height": 900})
            wrong: list[str] = []
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.route(lambda url: not url.startswith((root, "data:")), lambda route: route.abort())
            if cookie:
                page.context.add_cookies([{"name": cookie, "value": "1", "url": root}])
            page.goto(root)
            yield page
            assert wrong == []
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


def _answers(root: str) -> bool:
    try:
        with urllib.request.urlopen(root, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
