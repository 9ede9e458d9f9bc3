from __future__ import annotations

from layerstep.arguments import Choice, Condition, Expr, Flag, Given, Keyword, Number, Pattern, Word
from layerstep.commands.break_ import condition_of
from layerstep.commands.set_ import GRADIENT, gradient_of, split_assignment
from layerstep.edits.acting import Reach, parse_tokens
from layerstep.edits.edits import Edits
from layerstep.edits.of_gradients import at_output, parameter_gradient
from layerstep.edits.target import Target
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.points.description import confirmation
from layerstep.registry import command
from layerstep.views import Notice

__all__ = ["COMPILED", "REACH", "WHERE", "check_compiled", "reach_of"]

WHERE = Pattern()
REACH = (
    Keyword("for", Number("N", least=1, default=0, name="times"), "acts in N calls only"),
    Keyword("call", Number("K", least=1, default=0), "acts only in the K-th call of a forward"),
    Keyword("tokens", Word("A:B", default="", name="tokens"), "acts only at these positions of the sequence"),
)


COMPILED = Flag("compiled", "act in the compiled code of a model, which stays compiled")


def check_compiled(given: Given) -> None:
    """Compiled code knows no calls, tokens or conditions of ours."""
    if given.times or given.call or given.tokens or given.condition:
        raise BadArguments(
            "--compiled acts in every call, on all tokens", "leave for, call, tokens and if out"
        )


def reach_of(given: Given) -> Reach:
    """In which calls, and on which tokens, an edit is to act."""
    return Reach(given.times or 0, given.call or 0, parse_tokens(given.tokens))


@command(
    "edit",
    group="change",
    args=(
        WHERE,
        Expr("[TARGET =] EXPR", name="text"),
        Choice("always", default="", name="always"),
        *REACH,
        *GRADIENT,
        Condition(),
    ),
    examples=(
        "edit blocks.1.mlp out * 0",
        "edit head out[0] = 0 for 1",
        "edit blocks.*.attn out * 0.5 tokens -1",
    ),
)
def edit(session: Session, given: Given) -> Notice:
    """Change a value in every call of a module from now on.

    The module returns EXPR in place of its output; EXPR may use `out`, `inp`, `kwargs` and all other names.
    `inp = EXPR` replaces the input, and `out[0] = EXPR` a part of the output, as `set` does. The edit acts in
    all calls, also if you add `always`. `if EXPR` limits it to calls where that holds. If a call runs twice,
    as in activation checkpointing or after `back`, the edit acts in both, and the call counts once.
    `edit PATH.grad EXPR` replaces the gradient of the module's output when it arrives in the backward pass.
    `edit PATH.weight.grad EXPR` replaces the gradient of a parameter before each step of its optimizer, and
    with `for N` before N steps. In both, `grad` is the old gradient.
    An edit is a point: `info breaks` says how often it acted, `disable` and `undo` take it back. `perturbed?`
    lists all edits.
    """
    if given.times and given.always:
        raise BadArguments("`for N` and `always` exclude each other")
    if given.where.endswith(".grad"):
        return _gradient(session, given, given.where.removesuffix(".grad"))
    target, expression = split_assignment(given.text)
    place = Target.parse(target or "out")
    if place.is_of_a_backward:
        raise BadArguments(
            f"edit replaces out, inp or kwargs, not {target}", f"edit {given.where}.grad {expression}"
        )
    if not place.is_of_a_call:
        raise BadArguments(
            f"edit replaces out, inp or kwargs, not {target}", f"`set {given.text}` writes it once"
        )
    edits, reach = session.instruments.get(Edits), reach_of(given)
    make = edits.by_expression(expression, target=place, gradient=gradient_of(given), reach=reach)
    point = edits.add(
        given.where,
        make,
        line=f"edit {given.typed}",
        phase=place.phase,
        reach=reach,
        condition=condition_of(given),
    )
    return confirmation(point, f": {place.text} = {expression}")


def _gradient(session: Session, given: Given, path: str) -> Notice:
    edits, line, reach = session.instruments.get(Edits), f"edit {given.typed}", reach_of(given)
    condition = condition_of(given)
    if given.through or given.cut:
        raise BadArguments("--through and --cut are for values, and this is a gradient")
    found = parameter_gradient(session, path, given.text, most=reach.most, condition=condition)
    if edits.is_trying:
        hint = f"`{line}`, then `diff --step` compares gradients" if found is None else ""
        raise BadArguments("an edit of a gradient changes no output", hint)
    if found is not None:
        if reach.call or reach.tokens is not None:
            raise BadArguments(
                f"{found.name} is a parameter: call and tokens are for modules", "for N is a number of steps"
            )
        return edits.edit_gradient(found, line=line)
    point = edits.add(
        path,
        at_output(session, given.text, reach=reach),
        line=line,
        reach=reach,
        condition=condition,
    )
    return confirmation(point, f": the gradient of what it returns is {given.text}")
