from __future__ import annotations

from layerstep.arguments import Choice, Condition, Given, Number, Option, Real
from layerstep.calls.events import Phase
from layerstep.commands.break_ import condition_of
from layerstep.commands.edit import COMPILED, REACH, WHERE, check_compiled, reach_of
from layerstep.commands.set_ import GRADIENT, gradient_of
from layerstep.edits.edits import Edits
from layerstep.edits.heads import of_head, projection_of
from layerstep.edits.values import Value, mean_value, noise, replacing, resampled
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.points.description import confirmation
from layerstep.registry import command
from layerstep.views import Notice


@command(
    "ablate",
    group="change",
    args=(
        WHERE,
        Choice("zero|mean|noise|resample", default="zero", name="kind"),
        Option("size", Real("SIGMA")),
        Option("head", Number("H")),
        *REACH,
        COMPILED,
        *GRADIENT,
        Condition(),
    ),
    examples=("ablate blocks.1.mlp", "ablate blocks.0.attn mean", "ablate blocks.1.mlp noise --size 0.1"),
)
def ablate(session: Session, given: Given) -> Notice:
    """Take the contribution of a module away.

    It acts in every call from now on. `zero` replaces the output by zeros, `mean` by the mean of each
    feature.
    `noise` adds normal noise with the output's own std, or with std SIGMA (`--size`). `resample` gives each
    row of the batch the values of another row. The mean is over the recorded forwards (`record PATH
    --tensors`), or else over this batch. Noise comes from a separate generator, so the random streams of the
    run do not advance. If the module returns several tensors, only the first floating-point one is replaced.
    With `--head`, WHERE is an attention, and only this head is ablated. The rest is as in `edit`.
    `--compiled` is as in `scale`, for zeros only.
    """
    if given.compiled:
        check_compiled(given)
        if given.kind != "zero" or given.head is not None or given.through or given.cut:
            raise BadArguments(
                "--compiled is for zeros of a whole module", f"ablate {given.where} --compiled"
            )
        line = f"ablate {given.typed}"
        return session.instruments.get(Edits).edit_compiled(given.where, factor=0.0, line=line)
    if given.size is not None and given.kind != "noise":
        raise BadArguments("--size is for noise", f"ablate {given.where} noise --size {given.size:g}")
    if given.head is not None and given.cut:
        raise BadArguments("--cut would cut all heads", "--through, or neither")
    value, source = _value(session, given)
    where, base, heads = given.where, "out", 0
    if given.head is not None:
        where, heads = projection_of(session.run.models, given.where)
        base, value = "inp", of_head(value, given.head, heads)
    edits, reach = session.instruments.get(Edits), reach_of(given)
    point = edits.add(
        where,
        replacing(value, reach=reach, gradient=gradient_of(given), base=base),
        line=f"ablate {given.typed}",
        phase=Phase.ENTER if base == "inp" else Phase.EXIT,
        reach=reach,
        condition=condition_of(given),
        is_random=given.kind in ("noise", "resample"),
    )
    words = f": {given.kind}" + (f" {source}" if source else "")
    return confirmation(point, words + (f", head {given.head} of {heads}" if heads else ""))


def _value(session: Session, given: Given) -> tuple[Value, str]:
    if given.kind == "mean":
        return mean_value(session, given.where)
    if given.kind == "noise":
        return lambda old, occasion: noise(old, occasion, given.size), ""
    if given.kind == "resample":
        return resampled, ""
    return lambda old, occasion: 0.0, ""
