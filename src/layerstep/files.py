"""Files of ours: written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from layerstep.errors import UserError

__all__ = ["replacing"]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write a file that takes the place of `path` once all is written.

    It is in a new folder of its own, next to `path`, that only this user may enter: in a directory where
    others write, a link of a name that they foresee would choose which file is written over. The run may
    have the old file mapped into its memory, so that is never written to. A full disk, or a name that the
    system refuses, is a `UserError`.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".layerstep-", dir=path.parent) as folder:
            new = Path(folder) / path.name  # by its name, which a writer may look at
            yield new
            os.replace(new, path)
    except OSError as error:
        raise UserError(f"cannot write {path}", error.strerror or "") from None
