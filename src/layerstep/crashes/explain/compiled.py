"""What torch.compile raises while it traces: operation, shapes and the user's line are in the message."""

from __future__ import annotations

import re

from layerstep.crashes.explain.explanation import Explanation, says
from layerstep.crashes.explain.facts import Facts

__all__: list[str] = []


@says(r"when making fake tensor call", r"Dynamo failed to run FX node with fake tensors")
def _fake(facts: Facts, found: re.Match[str]) -> Explanation | None:
    call = re.search(
        r"call_\w+ (?:<built-in (?:function|method) )?(\w+)(.*?): got (\w+)\((['\"])(.*?)\4\)",
        facts.message,
        re.DOTALL,
    )
    if call is None:
        return None
    shapes = ", ".join(f"[{shape.rstrip(',')}]" for shape in re.findall(r"size=\(([^)]*)\)", call[2]))
    places = re.findall(
        r'File "([^"]+)", line (\d+), in \w+\n\s+(.*)', facts.message.partition("from user code:")[2]
    )
    at = f", in {places[-1][2].strip()}" if places else ""
    return Explanation(
        f"compiled {call[1]} of {shapes or 'its operands'}{at}: {call[5].rstrip('.')}",
        'torch.compiler.set_stance("force_eager") runs it uncompiled and names the module',
    )
