"""State that does not fit the model: missing, unexpected and differently sized entries of a state_dict."""

from __future__ import annotations

import re

from layerstep.crashes.explain.explanation import Explanation, says
from layerstep.crashes.explain.facts import Facts

__all__: list[str] = []

MOST = 3
_PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "encoder.")


@says(r"Error\(s\) in loading state_dict for (\w+)")
def _state(facts: Facts, found: re.Match[str]) -> Explanation:
    missing, unexpected = _keys("Missing", facts.message), _keys("Unexpected", facts.message)
    sizes = re.findall(
        r"size mismatch for ([\w.]+): copying a param with shape torch\.Size\((\[.*?\])\) from checkpoint, "
        r"the shape in current model is torch\.Size\((\[.*?\])\)",
        facts.message,
    )
    parts = []
    if missing:
        parts.append(f"{len(missing)} missing ({_some(missing)})")
    if unexpected:
        parts.append(f"{len(unexpected)} unexpected ({_some(unexpected)})")
    if sizes:
        shown = ", ".join(
            f"{name} is {there} in the file, {here} in the model" for name, there, here in sizes[:MOST]
        )
        parts.append(f"{len(sizes)} of another size ({shown}{', …' if len(sizes) > MOST else ''})")
    layers = sorted({name.rpartition(".")[0] or name for name in (*missing, *(name for name, *_ in sizes))})
    cause = f"load_state_dict of {found[1]}: {'; '.join(parts) or 'it does not fit'}"
    details = (f"layers concerned: {_some(layers, 12)}",) if layers else ()
    return Explanation(cause, _fix(missing, unexpected, [name for name, *_ in sizes]), details)


def _keys(word: str, message: str) -> list[str]:
    found = re.search(rf"{word} key\(s\) in state_dict: (.*?)\. ?(?:\n|$)", message, re.DOTALL)
    return re.findall(r'"([^"]+)"', found[1]) if found else []


def _some(names: list[str], most: int = MOST) -> str:
    return ", ".join(names[:most]) + (f", … {len(names) - most} more" if len(names) > most else "")


def _fix(missing: list[str], unexpected: list[str], sized: list[str]) -> str:
    for prefix in _PREFIXES:
        if unexpected and all(name.startswith(prefix) for name in unexpected):
            bare = {name.removeprefix(prefix) for name in unexpected}
            if not missing or bare & set(missing):
                why = {
                    "module.": "saved from DataParallel or DDP",
                    "_orig_mod.": "saved from torch.compile",
                }.get(prefix)
                return f'{{name.removeprefix("{prefix}"): value for …}}' + (f": it was {why}" if why else "")
        if missing and all(name.startswith(prefix) for name in missing):
            bare = {name.removeprefix(prefix) for name in missing}
            if bare & set(unexpected):
                return f'{{"{prefix}" + name: value for …}}, or load into the part below {prefix.rstrip(".")}'
    if sized and not (missing or unexpected):
        return "the model was made with other sizes (classes, vocabulary, width), or leave these entries out"
    return "strict=False loads what fits and returns the names of the rest; is it the file of another model?"
