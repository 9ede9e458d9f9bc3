"""Pages for a report: plots drawn by matplotlib, the rest as text."""

from __future__ import annotations

import io
from pathlib import Path

from layerstep.exports.figure import figures_of, saved
from layerstep.registry import export
from layerstep.views import View

__all__ = ["write_pdf"]

PAGE = 11.0
"""Inches."""


@export(".pdf", extra="plots")
def write_pdf(view: View, path: Path) -> None:
    from matplotlib.backends.backend_pdf import PdfPages

    file = io.BytesIO()  # matplotlib would leave a file open when the disk is full
    with PdfPages(file, metadata={"Title": path.stem, "Creator": "layerstep"}) as pages:
        for figure in figures_of(view, height=PAGE):
            saved(figure, pages, "pdf")
    path.write_bytes(file.getvalue())
