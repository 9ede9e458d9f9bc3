"""Views as HTML for a notebook: trees fold, tables sort by a click, plots are drawings.

A fragment loads nothing and takes the colours of the page, light or dark. Where scripts are off, everything
is there, and only the sorting is not.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator

from layerstep.render.html import to_html
from layerstep.render.spelled import spelled_out
from layerstep.render.svg import to_svg
from layerstep.views import Column, Figure, Group, Node, Plot, Table, Tree, View

__all__ = ["STYLE", "to_interactive_html"]

OPEN_LEVELS = 2
"""Levels of a tree that are open at first."""
MOST_NODES = 2000

STYLE = """<style>
.layerstep { font: 13px/1.35 ui-monospace, Menlo, Consolas, monospace; color: inherit }
.layerstep pre { font: inherit; margin: .3em 0; white-space: pre; overflow-x: auto }
.layerstep details, .layerstep .leaf { padding-left: 1.2em }
.layerstep summary { margin-left: -1.1em; cursor: pointer }
.layerstep table { border-collapse: collapse; margin: .3em 0; font: inherit; color: inherit;
  background: none }
.layerstep th, .layerstep td { padding: .1em .8em .1em 0; border: 0; text-align: left; background: none;
  color: inherit; white-space: pre; vertical-align: top }
.layerstep th { cursor: pointer; border-bottom: 1px solid currentColor; user-select: none }
.layerstep th:hover { text-decoration: underline }
.layerstep tr { background: none }
.layerstep .right { text-align: right }
.layerstep .path { color: #1a8ca5; font-weight: 600 } .layerstep .type { color: #b455b4 }
.layerstep .code, .layerstep .good { color: #2e9d53 } .layerstep .warn { color: #b07d00 }
.layerstep .bad { color: #d1433b; font-weight: 600 } .layerstep .key { font-weight: 600 }
.layerstep .dim { opacity: .7 }
</style>"""

_SORT = (
    "var h=event.target.closest('th');if(!h)return;"
    "var t=h.closest('table').tBodies[0],i=h.cellIndex,d=h.dataset.d=h.dataset.d=='1'?-1:1;"
    "function k(r){var c=r.cells[i];return c.dataset.v===undefined?c.textContent:+c.dataset.v}"
    "Array.from(t.rows).sort(function(a,b){a=k(a);b=k(b);return d*(a&lt;b?-1:a&gt;b?1:0)})"
    ".forEach(function(r){t.appendChild(r)})"
)
"""A click on a heading sorts by its column, a second one the other way round."""


def to_interactive_html(view: View, *, width: int = 100, most: int = 200) -> str:
    """A view as a fragment, to be put into an element of the class `layerstep` below `STYLE`.

    A table shows at most `most` rows.
    """
    return "".join(_parts([spelled_out(view)], width, most))


def _parts(views: Iterable[View], width: int, most: int) -> Iterator[str]:
    for view in views:
        if isinstance(view, Group):
            yield from _parts(view.views, width, most)
        elif isinstance(view, Tree) and _count(view.root) <= MOST_NODES:
            yield _node(view.root, 0) + _note(view.note)
        elif isinstance(view, Table) and view.columns:
            yield _table(view, most)
        elif isinstance(view, Plot):
            yield f'<div class="layerstep-plot">{to_svg(view, in_a_page=True)}</div>'
        else:
            yield to_html(view, width=width)


def _count(node: Node) -> int:
    return 1 + sum(map(_count, node.children))


def _span(text: str, role: str) -> str:
    return f'<span class="{role}">{html.escape(text)}</span>' if text else ""


def _note(note: str) -> str:
    return f'<div class="dim">{html.escape(note)}</div>' if note else ""


def _node(node: Node, level: int) -> str:
    words = ((node.label, "path"), (node.kind, "type"), (node.mark, "warn"), (node.detail, "dim"))
    line = "&ensp;".join(filter(None, (_span(text, role) for text, role in words)))
    if not node.children:
        return f'<div class="leaf">{line}</div>'
    inner = "".join(_node(child, level + 1) for child in node.children)
    is_open = " open" if level < OPEN_LEVELS else ""
    return f"<details{is_open}><summary>{line}</summary>{inner}</details>"


def _table(table: Table, most: int) -> str:
    title = f'<div class="key">{html.escape(table.title)}</div>' if table.title else ""
    heads = "".join(
        f'<th class="{"right" if each.right else ""}" title="sort">{html.escape(each.name)}</th>'
        for each in table.columns
    )
    rows = "".join("<tr>" + "".join(map(_cell, table.columns, row)) + "</tr>" for row in table.rows[:most])
    left = len(table.rows) - most
    note = f"{left:,} more rows are left out; `config max_lines N` shows more" if left > 0 else ""
    return (
        f'{title}<table><thead onclick="{_SORT}"><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
        f"{_note(table.note)}{_note(note)}"
    )


def _cell(column: Column, text: str) -> str:
    number = _number(text)
    is_number = column.right or number is not None
    value = f' data-v="{-math.inf if number is None else number!r}"' if is_number else ""
    value = value.replace("inf", "Infinity")
    kind = " ".join(filter(None, ("right" if column.right else "", column.role)))
    return f'<td class="{kind}"{value}>{html.escape(text)}</td>'


def _number(text: str) -> float | None:
    """What a cell is sorted by; None if it is not a number."""
    if isinstance(text, Figure):
        return None if math.isnan(text.value) else float(text.value)
    try:
        number = float(text.rstrip("%").replace(",", ""))
    except ValueError:
        return None
    return None if math.isnan(number) else number
