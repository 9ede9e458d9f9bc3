"""Numbers as people read them, the same in the tensor line and in every table."""

from __future__ import annotations

from collections.abc import Sequence

from layerstep.views import Figure

__all__ = ["dims", "flop_count", "human_bytes", "listed", "number", "place", "share"]


def number(value: float | None) -> str:
    """Three significant digits, as short as they go."""
    if value is None:
        return "-"
    if value == 0:
        return Figure("0", value)
    text = f"{value:.3g}"
    return Figure(text.replace("e+0", "e").replace("e-0", "e-").replace("e+", "e"), value)


def human_bytes(count: int) -> str:
    """2.4 MB: powers of 1000, as disks and papers count."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            text = f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
            return Figure(text, count, "B")
        size /= 1000
    return Figure(f"{size:.1f} TB", count, "B")


_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def flop_count(count: int) -> str:
    """1.2 G: floating-point operations."""
    if not count:
        return "-"
    for unit, letter in _UNITS:
        if count >= unit:
            return Figure(f"{number(count / unit)} {letter}", count, "FLOP")
    return Figure(str(count), count, "FLOP")


def share(part: int, whole: int) -> str:
    """A percentage that is never 0 % or 100 % unless it is."""
    if not part:
        return Figure("0%", 0.0, "%")
    percent = 100 * part / whole
    text = "<1%" if percent < 1 else ">99%" if 99 < percent < 100 else f"{percent:.0f}%"
    return Figure(text, percent, "%")


def dims(shape: tuple[int, ...]) -> str:
    """2×8×16, for a table."""
    return "×".join("*" if size < 0 else str(size) for size in shape) or "scalar"


def place(index: tuple[int, ...]) -> str:
    """[3, 0, 17]: where in a tensor."""
    return f"[{', '.join(map(str, index))}]"


def listed(names: Sequence[str], most: int = 8) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
