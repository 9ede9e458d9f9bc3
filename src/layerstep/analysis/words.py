"""Numbers as people read them, the same in the tensor line and in every table."""

from __future__ import annotations

__all__ = ["dims", "human_bytes", "number", "place", "share"]


def number(value: float | None) -> str:
    """Three significant digits, as short as they go."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    text = f"{value:.3g}"
    return text.replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def human_bytes(count: int) -> str:
    """2.4 MB: powers of 1000, as disks and papers count."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def share(part: int, whole: int) -> str:
    """A percentage that is never 0 % or 100 % unless it is."""
    if not part:
        return "0%"
    percent = 100 * part / whole
    return "<1%" if percent < 1 else ">99%" if 99 < percent < 100 else f"{percent:.0f}%"


def dims(shape: tuple[int, ...]) -> str:
    """2×8×16, for a table."""
    return "×".join("*" if size < 0 else str(size) for size in shape) or "scalar"


def place(index: tuple[int, ...]) -> str:
    """[3, 0, 17]: where in a tensor."""
    return f"[{', '.join(map(str, index))}]"
