"""The guided tour: a word about each command, then the command, which Enter takes."""

from __future__ import annotations

from pathlib import Path

from layerstep.frontends.choose import open_session
from layerstep.frontends.terminal.prompt import Terminal
from layerstep.program import Program, debug

__all__ = ["STEPS", "play"]

STEPS: tuple[tuple[str, str], ...] = (
    (
        "A small transformer runs three batches; the last gives nan. Which layer is it?\n"
        "Stop at the first module whose output has a nan. `**` is every module.",
        "break ** if out.isnan().any()",
    ),
    ("Nothing has run yet: start the script.", "continue"),
    ("It stopped. Which modules are running, with which shapes, called from where?", "where"),
    ("The input is clean, so this layer makes the nan. What does it compute?", "list blocks.1.norm1"),
    (
        "It divides by the root mean square. Which tokens are all zeros?\n"
        "A line that is no command is Python.",
        "inp.abs().amax(-1)[1] == 0",
    ),
    (
        "The padding is all zeros. What keeps the other blocks from 0/0?",
        "print [b.norm1.eps for b in model.blocks]",
    ),
    ("Block 1 has no epsilon: that is the fault. The point has done its work.", "delete 1"),
    ("The tree shows where the run is. Blocks that are alike are folded.", "tree"),
    ("Go on layer by layer: each step computes one more module.", "step"),
    ("See the source that is running, with an arrow at the line.", "list"),
    ("Did looking change anything in the run?", "perturbed?"),
    ("Let the script end by itself.", "detach"),
)


def play() -> int:
    """Run the tour: typed on a terminal, played by itself elsewhere."""
    session, _ = open_session()
    script = Program(str(Path(__file__).with_name("script.py")), [])
    if isinstance(session.prompt.frontend, Terminal):
        session.prompt.frontend.guide.extend(STEPS)
    else:
        for word, line in STEPS:
            session.prompt.script.extend(("# " + word.replace("\n", "\n# "), line))
    return debug(script, session)
