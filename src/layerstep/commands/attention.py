from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from layerstep._torch import below_everything
from layerstep._torch.tensors import is_tensor
from layerstep.arguments import Expr, Flag, Given, Number, Option, Where
from layerstep.attention.capture import Attention, AttentionWatcher
from layerstep.attention.heads import Head, Pattern, difference, findings, look_at_heads
from layerstep.attention.of_model import GivenTokens
from layerstep.engine.session import Session
from layerstep.engine.values import value_of
from layerstep.errors import BadArguments, UserError
from layerstep.layers.calls import LayerCall, calls_at, calls_here
from layerstep.registry import command
from layerstep.rerun.kv_caches import CallProgress
from layerstep.rerun.module_call import Rerun, rerun
from layerstep.tensors.format import number
from layerstep.tensors.grid import grid_of
from layerstep.tensors.kinds import dense_values
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import tensors_in
from layerstep.views import Column, Figure, Group, Level, Notice, Plot, Table, View

MOST_SHOWN = 4
"""Attentions of one answer, and heads drawn where none is chosen."""
MOST_HEADS = 32
LARGE, SMALL = (32, 64), (12, 24)
"""Rows and columns of the map of a chosen head, and of each of several."""
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
HALF_TOLERANCE = 3e-2


@command(
    "attention",
    group="look",
    args=(
        Where(optional=True),
        Option("head", Number("N"), "shows one head, counted from 0"),
        Option("batch", Number("N"), "looks at one element of the batch, counted from 0"),
        Option("tokens", Expr("EXPR"), "names the positions on the axes of the maps"),
        Flag("log"),
    ),
    examples=("attention", "attention blocks.1 --head 0 --log", 'attention blocks.1 --tokens "a b c d e"'),
)
def attention(session: Session, wish: Given) -> View:
    """Show what the heads of an attention look at.

    WHERE is an attention module, or a module that contains some. It must be in view: it is running, or you
    stepped through it or stopped at it, or `record --tensors` keeps it. Without WHERE, it is the one at this
    stop, or the nearest one around it.
    layerstep runs the module once more on copies of its inputs, without dropout and hooks; the run is not
    changed. It reads the attention while it is computed: torch's scaled_dot_product_attention,
    nn.MultiheadAttention, or a softmax that is multiplied with something. The answer says whether the rerun
    gave the same output as the run. `$` is then the weights: [batch, heads, queries, keys].
    Entropy is in nats; spread is the entropy divided by its largest possible value. First, own, prev, future
    and padding are the shares of the weight that go to the first token, to the query's own, to the one before
    it, to later ones and to padding. All are means over the queries that can see more than one key, over the
    batch or one element of it. EXPR is text, or a list of words or ids: the tokens on the axes of the maps,
    and in the page of the whole model that `export attention.html` writes.
    `--log` shades the maps by powers of ten, so that small weights show next to large ones.
    """
    calls = calls_at(session, wish.where) if wish.where else calls_here(session)
    if not calls:
        raise UserError("nothing has stopped yet", "`continue` to a stop")
    views: list[View] = []
    more, trouble = False, ("", "")
    for call in calls:
        if len(views) >= MOST_SHOWN or (views and not wish.where):
            more |= bool(wish.where)
            break
        try:
            watcher, done = _run_again(session, call, wish)
        except UserError as error:  # the words only: the error would hold the frames, and they the tensors
            trouble = trouble if trouble[0] else (error.message, error.hint)
            continue
        room = MOST_SHOWN - len(views)
        alone = len(watcher.found) == 1 and (len(calls) == 1 or not wish.where)
        views += [_shown(session, wish, call, done, seen, alone) for seen in watcher.found[:room]]
        more |= len(watcher.found) > room or bool(watcher.too_large)
    if not views:
        unseen = "it is seen in torch's own functions only: not in compiled, scripted or other kernels"
        nothing = (f"no attention was seen at {wish.where or 'this stop'}", unseen)
        raise UserError(*(trouble if trouble[0] else nothing))
    if more:
        views.append(Notice("there are more, left out here", "name one of them"))
    return views[0] if len(views) == 1 else Group(tuple(views))


def _run_again(session: Session, call: LayerCall, wish: Given) -> tuple[AttentionWatcher, Rerun]:
    watcher = AttentionWatcher(batch=wish.batch, head=wish.head)
    done = rerun(
        session, call.module, args=call.args, kwargs=call.kwargs, progress=call.progress, watcher=watcher
    )
    if not watcher.found and watcher.too_large:
        shape = " × ".join(map(str, watcher.too_large[0]))
        raise UserError(f"the weights of {call.path} are too many: {shape}", "choose --head N and --batch N")
    return watcher, done


def _shown(session: Session, wish: Given, call: LayerCall, done: Rerun, seen: Attention, alone: bool) -> View:
    tokens = _tokens(session, wish) if wish.tokens else []
    if tokens:
        session.instruments.get(GivenTokens).tokens = tokens
    with observing():
        weights, allowed = _chosen(wish, seen)
        padding = _padding(session, call, seen)
        if padding is not None and wish.batch is not None:
            padding = padding[wish.batch : wish.batch + 1]
        offset = _offset(seen, allowed)
        pattern = look_at_heads(weights, allowed, padding=padding, offset=offset)
        level, verdict = _verdict(call, done, seen)
    kept = session.run.results.keep(seen.weights)
    path = session.run.models.path_of(seen.module) if seen.module is not None else call.path
    title = f"{path}  {_described(seen, pattern)}" + (f", kept as ${kept}" if kept else "")
    heads = [head for head in pattern.heads if wish.head in (None, head.index) or seen.head is not None]
    notes = findings(pattern, means_causal=getattr(seen.module, "is_causal", False) is True)
    views: list[View] = [Notice(title, verdict, level), _table(heads, notes, seen)]
    if alone:
        views += _maps(wish, seen, [head.index for head in heads], tokens)
    return Group(tuple(views))


def _chosen(wish: Given, seen: Attention) -> tuple[Tensor, Tensor]:
    """The weights of the batch element that is asked for; its own if no more was worked out."""
    batch, heads = seen.weights.shape[:2]
    for name, index, size, one in (
        ("batch", wish.batch, batch, seen.batch),
        ("head", wish.head, heads, seen.head),
    ):
        if index is not None and one is None and index >= size:
            raise BadArguments(f"there is no {name} {index}", f"there are 0 to {size - 1}")
    if wish.batch is None or seen.batch is not None:
        return seen.weights, seen.allowed
    return seen.weights[wish.batch : wish.batch + 1], seen.allowed[wish.batch : wish.batch + 1]


def _offset(seen: Attention, allowed: Tensor) -> int | None:
    """Where among the keys the queries begin: after what a cache held. None: another sequence."""
    queries, keys = allowed.shape[-2:]
    if seen.is_cross:
        return None
    if queries == keys:
        return 0
    if queries < keys and seen.is_cached:
        last = allowed[..., -1, :].flatten(0, -2).any(0).nonzero()
        return int(last.max()) - queries + 1 if last.numel() else keys - queries
    return None


def _padding(session: Session, call: LayerCall, seen: Attention) -> Tensor | None:
    """Which keys are padding, [batch, keys], as far as the calls around tell: by a mask or by token ids."""
    device = seen.weights.device

    def fits(value: Any) -> bool:
        if not is_tensor(value) or value.dim() != 2 or value.shape[1] != seen.weights.shape[-1]:
            return False
        return seen.batch is not None or value.shape[0] == seen.weights.shape[0]

    around = [call, *calls_here(session)]
    for one in around:
        for name in ("attention_mask", "key_padding_mask", "src_key_padding_mask"):
            mask: Any = one.kwargs.get(name)
            if fits(mask):
                padding: Tensor = mask == 0 if name == "attention_mask" else mask != 0
                return padding.to(device)
    root = around[-1]
    tables = (part for part in root.module.modules() if isinstance(part, nn.Embedding))
    index = next((table.padding_idx for table in tables if table.padding_idx is not None), None)
    tensors = tensors_in((root.args, root.kwargs), most=4)
    ids = next((t for _, t in tensors if fits(t) and t.dtype in (torch.int64, torch.int32)), None)
    if index is None or ids is None or not (ids == index).any():
        return None
    return (ids == index).to(device)


def _verdict(call: LayerCall, done: Rerun, seen: Attention) -> tuple[Level, str]:
    """Are these the weights of the run? What was compared, and how close it is."""
    kernel = f", weights @ v is the kernel's to {number(seen.error)}" if seen.error is not None else ""
    outputs = tensors_in(call.output, most=1)
    dtype = outputs[0][1].dtype if outputs else seen.weights.dtype
    tolerance = TOLERANCE.get(dtype, HALF_TOLERANCE)
    if seen.error is not None and not seen.error <= tolerance:
        return (
            "error",
            f"not to be trusted: weights @ v differs from the kernel's result by {number(seen.error)}",
        )
    if call.progress is not CallProgress.AFTER:
        return "info", f"not checked with its output, it has not finished{kernel}"
    if done.dropped:
        return "info", f"not checked with its output, which had dropout{kernel}"
    if done.drew:
        return "info", f"not checked with its output, it draws random numbers{kernel}"
    gap = difference(done.output, call.output)
    if gap is None:
        return "info", f"not checked, its output has no numbers to compare{kernel}"
    if gap <= tolerance and done.grew:
        return "warn", f"not to be trusted if {done.grew[0]} is a cache: each call writes it, this one twice"
    if gap <= tolerance:
        close = "bit for bit" if not gap else f"to {number(gap)}"
        return "good", f"checked: the rerun gives its output {close}{kernel}"
    why = "its inputs or state have changed since"
    if done.unhooked or done.fused:
        why = "hooks inside were not called" if done.unhooked else "in the run it was one fused kernel"
    return "error", f"not to be trusted: the rerun differs from its output by {number(gap)}, {why}"


def _described(seen: Attention, pattern: Pattern) -> str:
    batch, heads, queries, keys = seen.weights.shape
    mask = "causal" if pattern.is_causal else "across" if pattern.offset is None else "not causal"
    window = f", window {pattern.window}" if pattern.window is not None else ""
    return f"{seen.kind}, batch {batch}, {heads} heads × {queries} queries × {keys} keys, {mask}{window}"


_COLUMNS = ("head", "entropy", "spread", "first", "own", "prev", "future", "padding", "like", "cosine")


def _percent(share: float) -> Figure:
    return Figure(f"{share:.0%}" if share in (0.0, 1.0) else f"{share:.1%}", 100 * share, "%")


def _table(heads: list[Head], notes: list[str], seen: Attention) -> Table:
    rows = [
        (
            str(head.index if seen.head is None else seen.head),
            number(head.entropy),
            *(
                "-" if value is None else _percent(value)
                for value in (head.spread, head.first, head.own, head.previous, head.future, head.padding)
            ),
            "-" if head.nearest is None else str(head.nearest),
            "-" if head.cosine is None else Figure(f"{head.cosine:.3f}", head.cosine),
        )
        for head in heads[:MOST_HEADS]
    ]
    if len(heads) > MOST_HEADS:
        notes = [*notes, f"{len(heads) - MOST_HEADS} more heads; --head N shows one"]
    columns = tuple(Column(name, right=True) for name in _COLUMNS)
    return Table(columns, tuple(rows), note="\n".join(notes))


def _maps(wish: Given, seen: Attention, heads: list[int], tokens: list[str]) -> list[Plot]:
    most = LARGE if len(heads) == 1 else SMALL
    batch = wish.batch or 0 if seen.batch is None else 0
    queries, keys = seen.weights.shape[-2:]
    plots = []
    for head in heads[:MOST_SHOWN]:
        grid = grid_of(seen.weights[batch, head], most=most)
        whole = grid.block == (1, 1) and tokens
        plots.append(
            Plot(
                "heatmap",
                grid.rows,
                title=f"head {head if seen.head is None else seen.head}"
                + (f", batch {wish.batch or 0}" if len(seen.weights) > 1 or seen.batch is not None else ""),
                names=_fitting(tokens, queries) if whole else (),
                labels=_fitting(tokens, keys) if whole else (),
                x_label="keys",
                y_label="queries",
                note=grid.note,
                log=wish.log,
                cell=grid.block,
            )
        )
    return plots


def _fitting(tokens: list[str], count: int) -> tuple[str, ...]:
    """The tokens of an axis: the last ones, if it is that of the queries after a cache."""
    return tuple(tokens[-count:]) if len(tokens) >= count else ()


def _tokens(session: Session, wish: Given) -> list[str]:
    value: Any = value_of(session.prompt, wish.tokens)
    if is_tensor(value):
        with below_everything():
            values = dense_values(value)
            value = values.cpu().tolist() if values is not None else value
    if isinstance(value, str):
        value = value.split()
    if isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple):
        value = value[min(wish.batch or 0, len(value) - 1)]
    if not isinstance(value, list | tuple):
        raise BadArguments(
            f"--tokens is text or a list, not a {type(value).__name__}", '--tokens "the cat sat"'
        )
    return [" ".join(str(item).split()) or "␣" for item in value]
