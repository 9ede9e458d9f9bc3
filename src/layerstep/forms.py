"""The ways to use a command, made of what it declares, and how they read in its usage."""

from __future__ import annotations

from collections.abc import Sequence

from layerstep.arguments import Form, Item

__all__ = ["Declared", "forms_of", "usage_of"]

Declared = Item | Form | Sequence[Item | Form]


def forms_of(declared: Declared) -> tuple[Form, ...]:
    """The ways to use a command; what stands outside of every form is one without a word."""
    items = declared if isinstance(declared, Sequence) else (declared,)
    plain = [item for item in items if not isinstance(item, Form)]
    forms = [item for item in items if isinstance(item, Form)]
    return tuple(forms) if forms and not plain else (Form("", *plain), *forms)


def usage_of(forms: Sequence[Form]) -> str:
    """`[X] | flow | record [every N]`."""
    ways = [form.usage for form in forms if form.usage]
    can_be_left_out = len(ways) < len(forms)
    text = " | ".join(ways)
    return f"[{text}]" if can_be_left_out and ways else text
