"""Every rule has a case in which it fires, at the right line, and a healthy twin that gets no warning.

A case is a file of `cases/` with the name of the rule's own file: `fires()` and `silent()` train something.
`PLACE` is the text of the line that the finding must name, `NAMES` the parameters or the module; one of them
is there.
"""

from __future__ import annotations

import importlib.util
import linecache
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from layerstep import registry
from layerstep.doctor.finding import Finding, Severity
from layerstep.doctor.watch import watching
from layerstep.registry import RuleEntry, all_rules, find_rule

CASES = Path(__file__).parent / "cases"


def _case(entry: RuleEntry) -> ModuleType:
    name = entry.kind.__module__.rpartition(".")[2]
    file = CASES / f"{name}.py"
    assert file.exists(), f"{entry.code} {entry.name} has no case tests/rules/cases/{name}.py"
    spec = importlib.util.spec_from_file_location(f"case_{name}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _findings(train: Callable[[], None]) -> list[Finding]:
    with watching("extreme") as doctor:
        train()
    return doctor.findings


@pytest.mark.parametrize("entry", all_rules(), ids=lambda entry: entry.code)
def test_a_rule_names_its_fault_first_and_where_it_is(entry: RuleEntry) -> None:
    case = _case(entry)
    findings = _findings(case.fires)
    assert findings, "nothing was found"
    first = findings[0]
    if entry.severity != Severity.INFO:
        assert first.rule == entry.name, [str(each) for each in findings]
    found = next((each for each in findings if each.rule == entry.name), None)
    assert found is not None, [each.rule for each in findings]
    line = linecache.getline(found.where.file, found.where.line).strip()
    if hasattr(case, "PLACE"):
        assert line == case.PLACE
    if hasattr(case, "NAMES"):
        assert {*found.where.parameters, found.where.module} & set(case.NAMES)
    assert hasattr(case, "PLACE") or hasattr(case, "NAMES")


@pytest.mark.parametrize("entry", all_rules(), ids=lambda entry: entry.code)
def test_the_healthy_twin_of_a_case_hears_nothing(entry: RuleEntry) -> None:
    findings = _findings(_case(entry).silent)
    assert not [each for each in findings if each.severity.rank >= Severity.WARNING.rank]
    assert entry.name not in [each.rule for each in findings]


@pytest.mark.parametrize("entry", all_rules(), ids=lambda entry: entry.code)
def test_a_rule_says_why_and_how_to_fix(entry: RuleEntry) -> None:
    assert entry.summary.endswith(".")
    assert "\nWhy:" in entry.help and "\nHow to fix:" in entry.help


def test_what_rules_explain_is_a_rule_and_has_no_circle() -> None:
    explains = {entry.name: set(entry.kind.explains) for entry in all_rules()}
    for name, others in explains.items():
        assert others <= explains.keys(), (name, others - explains.keys())
    left = dict(explains)
    while left:
        last = [name for name, others in left.items() if not others & left.keys()]
        assert last, f"these rules explain each other in a circle: {sorted(left)}"
        for name in last:
            del left[name]


def test_a_new_rule_is_one_file_and_its_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two files of the contributor guide, dropped beside the others, are a rule that finds its fault."""
    guide = (Path(__file__).parents[2] / "docs" / "contributing" / "adding-a-rule.md").read_text()
    rule_file, case_file = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)
    (tmp_path / "batch_of_one.py").write_text(case_file)
    monkeypatch.setattr(sys.modules[__name__], "CASES", tmp_path)
    monkeypatch.setattr(registry, "_rules", dict(registry._rules))
    made = ModuleType("layerstep.rules.batch_of_one")
    exec(compile(rule_file, "batch_of_one.py", "exec"), made.__dict__)
    entry = find_rule("X1")
    assert entry is not None
    test_a_rule_names_its_fault_first_and_where_it_is(entry)
    test_the_healthy_twin_of_a_case_hears_nothing(entry)
    test_a_rule_says_why_and_how_to_fix(entry)
