from __future__ import annotations

from layerstep.arguments import Given, Word
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.registry import RuleEntry, all_rules, command, find_rule, near, plugin_of
from layerstep.views import Column, Fields, Span, Table, Text, View


def _rules(session: Session) -> list[str]:
    return [name for entry in all_rules() for name in (entry.code, entry.name)]


@command(
    "explain",
    group="train",
    args=Word("RULE", optional=True, completes=_rules),
    examples=("explain", "explain R2", "explain stale-gradients"),
    only_looks=True,
)
def explain(session: Session, given: Given) -> View:
    """Explain a rule of the doctor.

    It says what the rule looks for, why it matters, and how to fix it. Without a rule, it lists all rules.
    """
    if not given.rule:
        rows = tuple((each.code, each.name, each.severity, each.summary) for each in all_rules())
        columns = (
            Column("rule", "key"),
            Column("name"),
            Column("severity", "warn"),
            Column("what"),
        )
        return Table(columns, rows, note="`explain RULE` says more, `doctor off RULE` silences one")
    entry = find_rule(given.rule)
    if entry is None:
        close = near(given.rule, _rules(session))
        raise BadArguments(
            f"no rule {given.rule!r}", f"did you mean {close[0]}?" if close else "`explain` lists them"
        )
    return _page(entry)


def _page(entry: RuleEntry) -> Fields:
    paragraphs = [" ".join(part.split()) for part in entry.help.split("\n\n")]
    items = [("what", paragraphs[0])]
    for paragraph in paragraphs[1:]:
        label, colon, text = paragraph.partition(": ")
        items.append((label.lower(), text) if colon and len(label) < 20 else ("", paragraph))
    kind = "a fact" if entry.confidence == "exact" else "a judgement on numbers"
    items.append(("severity", f"{entry.severity}, {kind}"))
    if entry.kind.explains:
        items.append(("explains", ", ".join(entry.kind.explains)))
    if entry.kind.confirm:
        items.append(("confirm", f"`{entry.kind.confirm}`"))
    if home := plugin_of(entry):
        items.append(("from", home))
    title = (Span(entry.code, "key"), Span(entry.name))
    return Fields(title, tuple((label, Text(text)) for label, text in items))
