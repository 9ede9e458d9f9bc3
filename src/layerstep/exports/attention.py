"""What the heads of a model look at, as a page: layers and heads to choose, tokens to point at."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from layerstep.attention.of_model import AttentionGroup, attention_of_model
from layerstep.graph.tracing import outermost_call
from layerstep.registry import export

__all__ = ["attention_page", "write_attention_page"]

DIGITS = 4


@export(".attention.html", of_session=True)
def write_attention_page(session: Any, path: Path) -> str:
    module, args, kwargs = outermost_call(session)
    most = session.run.config.attention_tokens
    groups = attention_of_model(session, module, args, kwargs, most=most)
    text = attention_page(groups, title=f"attention of {type(module).__name__}")
    path.write_text(text, encoding="utf-8")
    left_out = max(group.left_out for group in groups)
    more = f"; the first {most} tokens, `config attention_tokens N` takes more" if left_out else ""
    return f"{sum(len(group.layers) for group in groups)} layers{more}"


def attention_page(groups: list[AttentionGroup], *, title: str) -> str:
    """The page, in one file, with nothing to load. It holds the data as BertViz takes them."""
    data = {
        "attention": [
            {
                "name": group.name,
                "attn": [_rounded(weights.tolist()) for weights in group.weights],
                "left_text": list(group.queries),
                "right_text": list(group.keys),
                "layer_names": list(group.layers),
                "left_out": group.left_out,
            }
            for group in groups
        ],
        "default_filter": "0",
        "root_div_id": "attention",
        "layer": 0,
        "heads": None,
        "include_layers": list(range(max(len(group.layers) for group in groups))),
    }
    template = files("layerstep.exports").joinpath("attention.html").read_text(encoding="utf-8")
    body = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return template.replace("{{title}}", html.escape(title)).replace("{{data}}", body)


def _rounded(value: Any) -> Any:
    """Four digits are more than an eye sees; NaN, which JSON has not, is nothing."""
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return None if value != value else round(value, DIGITS) or 0
