"""The line editor of an attached prompt: as at home, but what it must know of the run comes over the wire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

from layerstep.errors import UserError
from layerstep.frontends.remote.conversation import Conversation, waiting
from layerstep.frontends.terminal.typed_lines import typed_lines
from layerstep.render.theme import prompt_styles

__all__ = ["line_editor"]

SECONDS = 0.5
"""For which a key may wait for the process. Then there are no candidates, and the line is taken as it is."""


def line_editor(talk: Conversation, *, no_colour: bool) -> PromptSession[str]:
    """A prompt with the history of this user, and completion by the process."""
    editor: PromptSession[str] = PromptSession(
        history=typed_lines(),
        completer=_Completions(talk),
        complete_while_typing=False,
        auto_suggest=AutoSuggestFromHistory(),
        style=Style.from_dict(prompt_styles("auto")),
        bottom_toolbar=lambda: [("class:toolbar", "  " + _status(talk))],
        prompt_continuation="... ",
        multiline=Condition(lambda: not _is_complete(talk, editor.default_buffer.text)),
        color_depth=ColorDepth.DEPTH_1_BIT if no_colour else None,
        refresh_interval=1.0,
    )
    return editor


def _status(talk: Conversation) -> str:
    facts = [waiting(talk.state)]
    facts += [f"forward {talk.state['forward']}"] if talk.state.get("forward") else []
    facts += [f"step {talk.state['step']}"] if talk.state.get("step") else []
    return "   ".join([*facts, f"process {talk.client.hello['pid']}"])


def _ask(talk: Conversation, line: str, *, candidates: bool) -> dict[str, Any]:
    try:
        return talk.client.request("complete", line=line, candidates=candidates).result(SECONDS)
    except (UserError, TimeoutError):
        return {"candidates": [], "is_complete": True}


def _is_complete(talk: Conversation, text: str) -> bool:
    """Is Enter the end of it? Only a text that may go on is asked about."""
    return not text.strip() or bool(_ask(talk, text, candidates=False)["is_complete"])


class _Completions(Completer):
    def __init__(self, talk: Conversation) -> None:
        self._talk = talk

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        for each in _ask(self._talk, document.text_before_cursor, candidates=True)["candidates"]:
            shown = each["shown"] or each["text"].rpartition(".")[2] or each["text"]
            yield Completion(
                each["text"], start_position=-each["length"], display=shown, display_meta=each["note"]
            )
