"""The frame of our pages: one file, nothing to load, for light and dark screens."""

from __future__ import annotations

import html

__all__ = ["page"]

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="layerstep">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
:root {{ --ink: #24292f; --back: #ffffff; --card: #f6f8fa; --line: #d0d7de }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6edf3; --back: #0d1117; --card: #161b22; --line: #30363d }}
}}
body {{ color: var(--ink); background: var(--back); font: 15px/1.5 system-ui, sans-serif; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.4rem }}
h2 {{ font-size: 1.1rem; margin: 0 }}
code {{ font-family: ui-monospace, monospace }}
svg {{ max-width: 100%; height: auto }}
article {{ background: var(--card); border: 1px solid var(--line); border-left-width: .4rem;
  border-radius: .4rem; padding: .7rem 1rem; margin: 1rem 0 }}
article.critical, article.error {{ border-left-color: #d1242f }}
article.warning {{ border-left-color: #bf8700 }}
article.info {{ border-left-color: #57606a }}
article article {{ margin: .6rem 0 0 }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .5rem 0 0 }}
dt {{ opacity: .7 }}
dd {{ margin: 0; overflow-wrap: anywhere }}
.facts {{ display: flex; flex-wrap: wrap; gap: 1.5rem }}
.facts b {{ font-size: 1.3rem; display: block }}
pre {{ overflow-x: auto; margin: .4rem 0 }}
{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def page(body: str, *, title: str, style: str = "") -> str:
    """A whole page around a body; `title` is text, `body` and `style` are not escaped."""
    return _PAGE.format(title=html.escape(title), body=body, style=style)
