"""Stepping without torch: a random call tree, and what each intent must stop at."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from layerstep.calls.events import Phase
from layerstep.engine.resume import Kind, Resume
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
    assert Intent(Kind.OP).reach is Intent(Kind.KERNEL).reach is Reach.ENCLOSING
    deep = {Kind.NEXT, Kind.FINISH, Kind.OP, Kind.KERNEL}
    assert {kind for kind in Kind if Intent(kind).needs_depth} == deep


# --- ops ---

LEVELS = {Kind.OP: Phase.OP, Kind.KERNEL: Phase.KERNEL}
kinds = st.sampled_from(list(LEVELS))


def walk_ops(tree: Tree, depth: int = 1) -> list[Moment]:
    """A call as `walk` has it, with an op of two kernels before and after each child."""
    ops = [Moment(Phase.KERNEL, 1, depth), Moment(Phase.KERNEL, 1, depth), Moment(Phase.OP, 1, depth)]
    inside = list(ops)
    for child in tree:
        inside += [*walk_ops(child, depth + 1), *ops]
    return [Moment(Phase.ENTER, 1, depth), *inside, Moment(Phase.EXIT, 1, depth)]


def own(moments: list[Moment]) -> list[Moment]:
    """What comes after the first entry, up to the exit of the same call."""
    depth = moments[0].depth
    end = next(i for i, m in enumerate(moments) if m.phase is Phase.EXIT and m.depth == depth)
    return moments[1 : end + 1]


@given(trees, kinds, st.integers(1, 40))
def test_an_op_step_stops_at_the_nth_op_of_its_level_or_at_the_exit(
    tree: Tree, kind: Kind, count: int
) -> None:
    inside = own(walk_ops(tree))
    intent = begin(Resume(kind, count), phase=Phase.ENTER, depth=1, thread=1)
    wanted = [i for i, m in enumerate(inside) if m.phase is LEVELS[kind]][count - 1 : count]
    assert stops(intent, inside) == (wanted or [len(inside) - 1])


@given(trees, kinds)
def test_op_steps_go_through_a_module_op_by_op(tree: Tree, kind: Kind) -> None:
    """From stop to stop: the module stays the one where it began, also after an op of a child."""
    inside = own(walk_ops(tree))
    intent, seen = begin(Resume(kind), phase=Phase.ENTER, depth=1, thread=1), []
    for moment in inside:
        stop, after = decide(intent, moment)
        if stop:
            seen.append(moment)
            intent = begin(
                Resume(kind), phase=moment.phase, depth=moment.depth + 1, thread=1, within=intent.depth
            )
        else:
            assert after == intent
    assert seen == [m for m in inside if m.phase is LEVELS[kind]] + inside[-1:]


@given(trees, kinds)
def test_after_an_exit_ops_are_those_of_the_enclosing_call(tree: Tree, kind: Kind) -> None:
    moments = walk_ops([tree])[1:]
    exit_ = next(i for i, m in enumerate(moments) if m.phase is Phase.EXIT and m.depth == 2)
    intent = begin(Resume(kind), phase=Phase.EXIT, depth=2, thread=1)
    later = moments[exit_ + 1 :]
    assert intent.depth == 1
    assert stops(intent, later) == [next(i for i, m in enumerate(later) if m.phase is LEVELS[kind])]


@given(trees, st.sampled_from([Kind.STEP, Kind.NEXT, Kind.INTO, Kind.FINISH]))
def test_module_steps_pass_ops_by(tree: Tree, kind: Kind) -> None:
    with_ops, without = walk_ops(tree), walk(tree)
    intent = begin(Resume(kind), phase=Phase.ENTER, depth=1, thread=1)
    one, other = stops(intent, own(with_ops)), stops(intent, own(without))
    assert [own(with_ops)[i].phase for i in one] == [own(without)[i].phase for i in other]


@given(kinds)
def test_from_an_op_the_module_steps_mean_its_module(kind: Kind) -> None:
    phase = LEVELS[kind]
    assert begin(Resume(Kind.FINISH), phase=phase, depth=3, thread=1).depth == 2
    assert begin(Resume(Kind.NEXT), phase=phase, depth=3, thread=1).depth == 3
    assert begin(Resume(kind), phase=phase, depth=3, thread=1).depth == 2
    assert begin(Resume(kind), phase=phase, depth=3, thread=1, within=1).depth == 1


@given(kinds)
def test_a_call_that_begins_outside_shows_that_the_module_is_over(kind: Kind) -> None:
    """Its own end may pass unseen: it began without hooks, or it raised."""
    intent = begin(Resume(kind, 9), phase=Phase.ENTER, depth=2, thread=1)
    assert not decide(intent, Moment(Phase.ENTER, 1, 3))[0]
    assert decide(intent, Moment(Phase.ENTER, 1, 1))[0]
    assert not decide(intent, Moment(Phase.ENTER, 2, 1))[0]


def test_it_imports_no_torch() -> None:
    code = "import sys, layerstep.engine.stepper; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
