from __future__ import annotations

from layerstep.arguments import Given, Rest
from layerstep.engine.session import Session
from layerstep.errors import BadArguments
from layerstep.registry import command, find_command
from layerstep.views import Column, Notice, Table, View


@command(
    "alias",
    group="self",
    args=Rest("NAME [= LINE]", optional=True),
    examples=("alias so = stats out", "alias"),
    at_once=True,
)
def alias(session: Session, given: Given) -> View:
    """Give a line a name of your own.

    `%1` to `%9` in the line are the arguments, `%*` all of them. Without LINE, the alias is removed.
    Without NAME, all are listed. An alias cannot have the name of a command.
    """
    rest = given.name
    if not rest:
        rows = tuple(session.prompt.aliases.items())
        return Table(
            (Column("alias", "key"), Column("line", "code")), rows, note="" if rows else "no aliases yet"
        )
    name, _, body = (part.strip() for part in rest.partition("="))
    if not name.replace("-", "_").isidentifier():
        raise BadArguments(f"{name!r} is no name")
    if find_command(name, prefix=False) is not None:
        raise BadArguments(f"{name} is a command", "choose another name")
    if not body:
        if session.prompt.aliases.pop(name, None) is None:
            raise BadArguments(f"no alias {name}", f"alias {name} = LINE makes one")
        return Notice(f"alias {name} dropped")
    session.prompt.aliases[name] = body
    return Notice(f"{name} is now: {body}", level="good")
