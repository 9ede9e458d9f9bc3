"""Names and text in little room: shortened names stay distinct, and a number is never broken in two."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.cells import cell_len

__all__ = ["longest_number", "shortened", "shortened_all", "wrapped"]

_ATOMS = re.compile(r"[-+−]?\d[\d.,_]*(?:[eE][-+]?\d+)?%?|.", re.DOTALL)
"""Numbers, which stay whole, and single characters."""
_PATH_ATOMS = re.compile(r"\d+|.", re.DOTALL)
"""The same in a path: in `1.0.10.` the dots stand between its parts."""


def shortened(name: str, room: int, *, head: int | None = None) -> str:
    """`h.0…c_attn.weight`: the head and the tail of a path tell it from others, the middle least."""
    if cell_len(name) <= room:
        return name
    if head is None:
        start = name[: room // 3]
        start = start[: start.rindex(".")] if "." in start else start
    else:
        start = name[:head]
    tail = name[len(start) :]
    while tail and cell_len(start) + 1 + cell_len(tail) > room:
        tail = tail[1:]
    return f"{start}…{tail}"


def shortened_all(names: Sequence[str], room: int) -> dict[str, str]:
    """Each name and what to show for it: two different names never look the same.

    A name that would look like another when shortened is shown whole, on several lines.
    """
    wanted = list(dict.fromkeys(names))
    best: dict[str, str] = {}
    for shown in _ways(wanted, room):
        if not best or len(set(shown.values())) > len(set(best.values())):
            best = shown
        if len(set(best.values())) == len(wanted):
            return best
    return _told_apart(best, room)


def _ways(names: list[str], room: int) -> Iterator[dict[str, str]]:
    """One way of cutting for all names, so that they look alike; the plainest way first."""
    yield {name: shortened(name, room) for name in names}
    elided = _elided(names, room)
    if all(cell_len(text) <= room for text in elided.values()):
        yield elided
    for head in range(room - 1, -1, -1):
        yield {name: shortened(name, room, head=head) for name in names}


def _told_apart(shown: dict[str, str], room: int) -> dict[str, str]:
    """Where one way is not enough for all: another one for the names that look the same."""
    groups: dict[str, list[str]] = {}
    for name, text in shown.items():
        groups.setdefault(text, []).append(name)
    taken = {text for text, group in groups.items() if len(group) == 1}
    for group in (group for group in groups.values() if len(group) > 1):
        texts = list(_elided(group, room).values())
        if len(set(texts)) < len(group) or taken & set(texts) or max(map(cell_len, texts)) > room:
            texts = ["\n".join(_broken(name, room, _PATH_ATOMS)) for name in group]
        shown.update(zip(group, texts, strict=True))
        taken |= set(texts)
    return shown


def _elided(names: Sequence[str], room: int) -> dict[str, str]:
    """`stage1…0…weight`: the parts in which the names differ, and of the others what has room."""
    parts = {name: name.split(".") for name in names}
    depth = min(map(len, parts.values()))
    same = [len({each[at] for each in parts.values()}) == 1 for at in range(depth)]
    shown = {}
    for name, each in parts.items():
        if cell_len(name) <= room:
            shown[name] = name
            continue
        keep = {at for at in range(len(each)) if at >= depth or not same[at]}
        for at in sorted(set(range(len(each))) - keep, key=lambda at: (at < max(keep, default=0), -at)):
            if cell_len(_joined(each, keep | {at})) <= room:
                keep.add(at)
        shown[name] = _joined(each, keep)
    return shown


def _joined(parts: Sequence[str], keep: set[int]) -> str:
    runs = groupby(range(len(parts)), key=keep.__contains__)
    texts = [".".join(parts[at] for at in run) if kept else "…" for kept, run in runs]
    return "".join(texts)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of no more than `width` columns, broken at spaces, else between characters, never in a number."""
    return [line for part in text.split("\n") for line in _wrapped_line(part, width)]


def _wrapped_line(text: str, width: int) -> Iterator[str]:
    if cell_len(text) <= width:
        yield text
        return
    line = ""
    for word in re.findall(r"\S+|\s+", text):
        if cell_len(line) + cell_len(word) <= width:
            line += word
            continue
        if word.isspace():
            yield line
            line = ""
            continue
        if line.strip():
            yield line.rstrip()
        *whole, line = _broken(word, width)
        yield from whole
    if line.strip():
        yield line.rstrip()


def _broken(word: str, width: int, atoms: re.Pattern[str] = _ATOMS) -> list[str]:
    lines = [""]
    for atom in atoms.findall(word):
        if lines[-1] and cell_len(lines[-1]) + cell_len(atom) > width:
            lines.append("")
        lines[-1] += atom
    return lines


def longest_number(text: str) -> int:
    """How wide the widest number in a text is; 0 if it has none."""
    return max((len(atom) for atom in _ATOMS.findall(text) if len(atom) > 1), default=0)
