"""The law of the null edit: to put a copy in place of every output changes no bit of the run."""

from __future__ import annotations

import pytest

from zoo import ZOO, Entry, differences, play

CASES = [pytest.param(entry, mode, id=f"{entry}-{mode}") for entry in ZOO for mode in entry.modes]


@pytest.mark.parametrize("entry, mode", CASES)
@pytest.mark.parametrize("line", ["scale ** 1", "edit ** inp = inp"])
def test_an_edit_that_changes_no_value_changes_no_bit(entry: Entry, mode: str, line: str) -> None:
    bare, edited = play(entry, mode), play(entry, mode, [line, "continue"])
    assert not edited.seen.bugs, edited.seen.text
    # An edit in a layer that is one kernel makes it take the plain path, and a compiled model run eagerly.
    loose = entry.compiled or (entry.fused and mode != "train")
    assert not differences(bare.state, edited.state, last_digits=loose)
