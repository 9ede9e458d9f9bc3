"""Stepping without torch: a random call tree, and what each intent must stop at."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from layerstep.engine.events import Kind, Phase, Resume
from layerstep.engine.stepper import GO, Intent, Moment, Reach, begin, decide, interrupt

Tree = list["Tree"]
trees = st.recursive(st.just([]), lambda children: st.lists(children, max_size=3), max_leaves=12)


def walk(tree: Tree, depth: int = 1, thread: int = 1) -> list[Moment]:
    """The events of a call of depth `depth` and all below it."""
    inside = [moment for child in tree for moment in walk(child, depth + 1, thread)]
    root = depth == 1
    return [Moment(Phase.ENTER, thread, depth, root, 1), *inside, Moment(Phase.EXIT, thread, depth, root, 1)]


def stops(intent: Intent, moments: list[Moment]) -> list[int]:
    """The first event at which the run stops, as a list of none or one."""
    for index, moment in enumerate(moments):
        stop, intent = decide(intent, moment)
        if stop:
            assert intent is GO
            return [index]
    return []


@given(trees, st.integers(1, 5))
def test_step_n_stops_at_the_nth_exit(tree: Tree, count: int) -> None:
    moments = walk(tree)
    exits = [i for i, moment in enumerate(moments) if moment.phase is Phase.EXIT]
    intent = begin(Resume(Kind.STEP, count), phase=None, depth=0, thread=1)
    assert stops(intent, moments) == exits[count - 1 : count]


@given(trees, st.data())
def test_next_never_stops_deeper_than_it_began(tree: Tree, data: st.DataObject) -> None:
    moments = walk(tree)
    at = data.draw(st.sampled_from([i for i, m in enumerate(moments) if m.phase is Phase.EXIT]))
    depth = moments[at].depth
    later = moments[at + 1 :]
    intent = begin(Resume(Kind.NEXT), phase=Phase.EXIT, depth=depth, thread=1)
    wanted = [i for i, m in enumerate(later) if m.phase is Phase.EXIT and m.depth <= depth]
    assert stops(intent, later) == wanted[:1]


@given(trees, st.data())
def test_finish_stops_at_the_end_of_the_enclosing_call(tree: Tree, data: st.DataObject) -> None:
    moments = walk(tree)
    at = data.draw(st.integers(0, len(moments) - 1))
    here = moments[at]
    later = moments[at + 1 :]
    limit = here.depth if here.phase is Phase.ENTER else here.depth - 1
    intent = begin(Resume(Kind.FINISH), phase=here.phase, depth=here.depth, thread=1)
    wanted = [i for i, m in enumerate(later) if m.phase is Phase.EXIT and m.depth == limit]
    assert stops(intent, later) == wanted[:1]


@given(trees)
def test_into_stops_at_the_next_entry(tree: Tree) -> None:
    moments = walk(tree)
    later = moments[1:]
    intent = begin(Resume(Kind.INTO), phase=Phase.ENTER, depth=1, thread=1)
    entries = [i for i, moment in enumerate(later) if moment.phase is Phase.ENTER]
    assert stops(intent, later) == entries[:1]


@given(trees, st.sampled_from([Kind.STEP, Kind.NEXT, Kind.INTO, Kind.FINISH]))
def test_a_step_belongs_to_its_thread(tree: Tree, kind: Kind) -> None:
    intent = begin(Resume(kind), phase=Phase.ENTER, depth=1, thread=7)
    assert stops(intent, walk(tree, thread=8)) == []


@given(trees)
def test_continue_never_stops_and_an_interrupt_stops_anywhere(tree: Tree) -> None:
    moments = walk(tree)
    assert stops(GO, moments) == []
    assert stops(interrupt(), moments) == [0]
    assert stops(interrupt(), walk(tree, thread=9)) == [0]


def test_until_forward_waits_for_the_entry_of_a_root() -> None:
    intent = begin(Resume(Kind.FORWARD, forward=3), phase=None, depth=0, thread=1)
    assert not decide(intent, Moment(Phase.ENTER, 1, 1, True, 2))[0]
    assert not decide(intent, Moment(Phase.EXIT, 1, 1, True, 3))[0]
    assert not decide(intent, Moment(Phase.ENTER, 1, 2, False, 3))[0]
    assert decide(intent, Moment(Phase.ENTER, 1, 1, True, 3))[0]
    assert decide(intent, Moment(Phase.ENTER, 1, 1, True, 4))[0]


def test_every_intent_says_how_far_it_must_hear() -> None:
    assert GO.reach is Reach.NOTHING
    assert Intent(Kind.FINISH).reach is Reach.ENCLOSING
    assert Intent(Kind.FINISH, everywhere=True).reach is Reach.ALL
    assert {kind for kind in Kind if Intent(kind).needs_depth} == {Kind.NEXT, Kind.FINISH}


def test_it_imports_no_torch() -> None:
    code = "import sys, layerstep.engine.stepper; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
