from __future__ import annotations

from layerstep.arguments import Given
from layerstep.automation.hook import Hook
from layerstep.automation.running import hooks_of
from layerstep.engine.session import Session
from layerstep.registry import command
from layerstep.views import Column, Notice, Table, View

MOST = 50


@command("hooks", group="train", args=(), examples=("hooks",))
def hooks(session: Session, given: Given) -> View:
    """List the hooks: when they act, what they do, and how often.

    A hook is built with `HookBuilder` and registered by `DebugSession.hooks`. One that raises is disabled,
    and the run goes on. Hooks that change the run are marked with a `!`; `perturbed?` lists what they did.
    """
    found = list(hooks_of(session))
    if not found:
        return Notice("there are no hooks", "`HookBuilder` builds one, `DebugSession.hooks` registers it")
    columns = (
        Column("no", right=True),
        Column("hook", "key"),
        Column("when"),
        Column("does"),
        Column("layers", "path"),
        *(Column(name, right=True) for name in ("times", "ms", "errors")),
        Column("state"),
    )
    rows = tuple(_row(number, hook) for number, hook in found[:MOST])
    note = f"{len(found) - MOST:,} more" if len(found) > MOST else ""
    return Table(columns, rows, note=note)


def _row(number: int, hook: Hook) -> tuple[str, ...]:
    does = ", ".join(f"! {each}" if each.changes_the_run else str(each) for each in hook.actions)
    state = f"disabled: {hook.error}" if hook.error else "on" if hook.is_active else "done"
    if not hook.enabled and not hook.error:
        state = "off"
    return (
        str(number),
        hook.name,
        str(hook.trigger),
        does,
        " ".join(where.text for where in hook.patterns),
        f"{hook.executions:,}",
        f"{1e3 * hook.seconds:.3g}",
        str(hook.errors),
        state,
    )
