"""WHERE: the modules a point is about, as the user writes them.

h.1.attn           a path, or any unique tail of one
encoder.*.attn     a glob: `*` stays within one segment, `**` crosses them
/norm\\d$/          a regular expression, searched in the path
type:LayerNorm     a class, or one it derives from; may be a glob (type:*Norm)
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from enum import StrEnum

from torch import nn

from layerstep.errors import BadArguments, UnknownPath
from layerstep.module_paths.globs import Glob
from layerstep.module_paths.models import Models

__all__ = ["Where", "WhereKind"]


class WhereKind(StrEnum):
    PATH = "path"
    GLOB = "glob"
    REGEX = "regex"
    TYPE = "type"


@dataclass(frozen=True, slots=True)
class Where:
    """A WHERE that has been read, not yet looked up."""

    text: str
    kind: WhereKind
    pattern: re.Pattern[str] | Glob | None = None

    @classmethod
    def parse(cls, text: str) -> Where:
        text = text.strip()
        if not text:
            raise BadArguments("WHERE is missing", "a path, a glob, /regex/ or type:Class")
        if text.startswith("type:"):
            return cls(text, WhereKind.TYPE, re.compile(fnmatch.translate(text[5:])))
        if text.startswith("/"):
            body = text[1:-1] if len(text) > 1 and text.endswith("/") else text[1:]
            try:
                return cls(text, WhereKind.REGEX, re.compile(body))
            except re.error as error:
                raise BadArguments(f"bad regular expression {body!r}: {error}") from None
        if any(sign in text for sign in "*?["):
            try:
                return cls(text, WhereKind.GLOB, Glob(text))
            except re.error as error:  # a bracket that is never closed
                raise BadArguments(f"bad pattern {text!r}: {error}") from None
        return cls(text, WhereKind.PATH)

    @property
    def is_one(self) -> bool:
        """Does it name one module? Then it is looked up once; the others grow with every new model."""
        return self.kind is WhereKind.PATH

    def look_up(self, models: Models) -> list[tuple[str, nn.Module]]:
        """The modules meant, as (path, module); UnknownPath if there is none or a path is ambiguous."""
        if self.kind is WhereKind.PATH:
            return [models.find(self.text)]
        found: dict[int, tuple[str, nn.Module]] = {}
        for path, module in models.everything():
            if self._fits(path, module):
                found.setdefault(id(module), (path, module))
        if not found:
            raise self._nothing(models)
        return list(found.values())

    def _fits(self, path: str, module: nn.Module) -> bool:
        assert self.pattern is not None
        if self.kind is WhereKind.TYPE:
            return any(self.pattern.match(base.__name__) for base in type(module).__mro__[:-1])
        return self.pattern.search(path) is not None

    def _nothing(self, models: Models) -> UnknownPath:
        if self.kind is WhereKind.TYPE:
            kinds = sorted({type(module).__name__ for _, module in models.everything()})
            shown = ", ".join(kinds[:8]) + (", …" if len(kinds) > 8 else "")
            return UnknownPath(f"no module is a {self.text[5:]}", f"there are {shown}" if kinds else "")
        hint = "`tree` shows the paths"
        if self.kind is WhereKind.GLOB and "**" not in self.text:
            hint = f"`*` stays within one segment, `**` crosses them: {self.text.replace('*', '**')}"
        return UnknownPath(f"nothing matches {self.text}", hint)
