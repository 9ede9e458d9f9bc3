"""The reference of commands, rules, exports and sinks as Markdown: ours, or those that a package adds.

python -m layerstep.reference layerstep-norms > reference.md
"""

from __future__ import annotations

import sys

from layerstep.documentation import documentation
from layerstep.errors import UserError
from layerstep.registry import (
    GROUPS,
    Command,
    Export,
    RuleEntry,
    SinkEntry,
    all_commands,
    all_exports,
    all_rules,
    all_sinks,
    plugin_of,
    untold_troubles,
)

__all__ = ["commands_of", "reference_of", "rules_of"]


def commands_of(group: str, package: str = "") -> str:
    """The commands of a group that a package adds; without one, ours."""
    every = (each for each in all_commands() if each.group == group)
    return "".join(_command(each) for each in every if plugin_of(each) == package)


def rules_of(package: str = "") -> str:
    """The rules that a package adds; without one, ours."""
    return "".join(_rule(each) for each in all_rules() if plugin_of(each) == package)


def reference_of(package: str) -> str:
    """All that a package adds; a UserError if that is nothing."""
    parts = {
        "Commands": "".join(commands_of(group, package) for group in GROUPS),
        "Rules": rules_of(package),
        "Exports": "".join(_export(each) for each in all_exports() if plugin_of(each) == package),
        "Sinks": "".join(_sink(each) for each in all_sinks().values() if plugin_of(each) == package),
    }
    if not any(parts.values()):
        trouble = next((each for each in untold_troubles() if f" of {package} " in each), "")
        raise UserError(f"no installed package {package!r} adds to layerstep", trouble)
    sections = (f"## {name}\n\n{text}" for name, text in parts.items() if text)
    return f"# {package}\n\n{''.join(sections)}".rstrip() + "\n"


def _command(command: Command) -> str:
    also = f" (also `{'`, `'.join(command.aliases)}`)" if command.aliases else ""
    usage = "\n".join(f"{command.name} {form.usage}".strip() for form in command.forms)
    out = f"### `{command.name}`{also}\n\n```text\n{usage}\n```\n\n{command.help}\n\n"
    options = [item for form in command.forms for item in form.options if item.help]
    out += "".join(f"`{option.usage[1:-1]}`: {option.help}.\n\n" for option in options)
    examples = "\n".join(command.examples)
    return out + (f"```text\n{examples}\n```\n\n" if examples else "")


def _rule(rule: RuleEntry) -> str:
    kind = "a fact" if rule.confidence == "exact" else "a judgement on numbers"
    out = f"## {rule.code} {rule.name}\n\n*{rule.severity}, {kind}*\n\n{rule.help}\n\n"
    return out + (f"Explains: {', '.join(rule.kind.explains)}.\n\n" if rule.kind.explains else "")


def _export(export: Export) -> str:
    return f"### `{export.suffix}`\n\n{documentation(export.function)}\n\n"


def _sink(sink: SinkEntry) -> str:
    usage = "=".join(filter(None, (sink.name, sink.takes)))
    return f"### `--sink {usage}`\n\n{documentation(sink.kind)}\n\n"


def main() -> int:
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m layerstep.reference PACKAGE\n")
        return 2
    try:
        sys.stdout.write(reference_of(sys.argv[1]))
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
