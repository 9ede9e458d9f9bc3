"""Colours of the prompt line: the command word, then Python."""

from __future__ import annotations

from collections.abc import Callable

from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.lexers import Lexer, PygmentsLexer
from prompt_toolkit.styles import Style
from pygments.lexers.python import PythonLexer

from layerstep.errors import UserError
from layerstep.line_syntax import WORD, is_python_after
from layerstep.registry import find_command
from layerstep.render.theme import prompt_styles

__all__ = ["LineLexer", "style_named"]


def style_named(setting: str) -> Style:
    """The style of the prompt line for a setting of `config theme`."""
    return Style.from_dict(prompt_styles(setting))


class LineLexer(Lexer):
    """Python, but for the word of a command at the beginning."""

    def __init__(self) -> None:
        self._python = PygmentsLexer(PythonLexer)

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        python = self._python.lex_document(document)
        match = WORD.match(document.lines[0])
        if match is None or is_python_after(match[1], match[2]):
            return python
        try:
            command = find_command(match[1])
        except UserError:
            command = None
        if command is None:
            return python
        first = document.lines[0]
        end = match.end(1)
        rest = self._python.lex_document(Document(first[end:]))

        def line(number: int) -> StyleAndTextTuples:
            return [("class:command", first[:end]), *rest(0)] if number == 0 else python(number)

        return line
