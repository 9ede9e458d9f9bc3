from __future__ import annotations

import os
from pathlib import Path

from layerstep.arguments import File, Given
from layerstep.engine.session import Session
from layerstep.errors import MissingExtra, UserError, first_line
from layerstep.registry import all_exports, command, find_export, plugin_of
from layerstep.views import Notice


@command(
    "export",
    group="keep",
    args=File(),
    examples=("hist out\nexport out.svg", "stats out\nexport out.json", "tree\nexport tree.html"),
)
def export(session: Session, given: Given) -> Notice:
    """Write what was shown last to a file.

    The suffix sets the format. A .html, .svg, .png or .pdf file holds what the screen shows, a .json file the
    data, and a .csv file the numbers of the last plot or table. .png and .pdf need the extra `plots`. The
    steps of a profile go into a .trace.json file, for Perfetto. What `graph` has shown goes into a .dot,
    .graph.svg, .mmd or .graph.json file. The model of this stop goes into a .onnx file, for Netron; this
    needs the extra `onnx`. An existing file is replaced.
    """
    path = Path(os.path.expanduser(given.file))
    kind = find_export(path.name)
    if kind is None:
        known = ", ".join(each.suffix for each in all_exports())
        raise UserError(f"{path.suffix or 'a file without a suffix'} is unknown here", f"there are {known}")
    if session.prompt.shown is None and not kind.of_session:
        raise UserError("nothing was shown yet", "`hist out`, say, draws a plot")
    try:
        note = kind.write(session if kind.of_session else session.prompt.shown, path)
    except MissingExtra as missing:
        raise UserError(str(missing)) from None
    except OSError as error:
        raise UserError(f"cannot write {given.file}", error.strerror or "") from None
    except Exception as error:
        home = plugin_of(kind)
        if isinstance(error, UserError) or not home:
            raise
        words = f"{type(error).__name__}: {first_line(error)}"[:200]
        raise UserError(f"the export {kind.suffix} of {home} failed: {words}") from None
    session.prompt.written.append(path)
    return Notice(f"written to {given.file}", note, level="good")
