"""The export of tables as Markdown."""

from __future__ import annotations

from pathlib import Path

from layerstep.errors import UserError
from layerstep.exports.parts import last_of
from layerstep.registry import export
from layerstep.views import Table, View


@export(".md")
def write_markdown(view: View, path: Path) -> None:
    """The rows of the table that was shown last, for a README or a chat."""
    table = last_of(view, Table)
    if table is None:
        raise UserError("no table was shown last", "`norms`, say, shows one")
    rule = ["--:" if column.right else "---" for column in table.columns]
    rows = [[column.name for column in table.columns], rule, *table.rows]
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
