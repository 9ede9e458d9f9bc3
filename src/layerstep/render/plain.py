"""Views on a console that has no more than ASCII: a similar character for each of ours, one for one."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

__all__ = ["SIMILAR", "Written"]

SIMILAR = str.maketrans(
    "│┤├└─┬┼·×…–→" + "▁▂▃▄▅▆▇█" + "▏▎▍▌▋▊▉▐" + "░▒▓" + "≡≣" + "✗✓●○▲◇━" + "μσ",
    "|+|+-++.x~->" + "_.:-=+*#" + "---=====" + ".+*" + "%@" + "!+*o^$-" + "us",
)


class Written:
    """Something in the characters that the console has."""

    def __init__(self, inner: RenderableType) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.inner, options):
            if options.ascii_only and not segment.control:
                segment = Segment(segment.text.translate(SIMILAR), segment.style)
            yield segment
