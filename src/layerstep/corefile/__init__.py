"""Core files: a stop of a run in one file, to open on another machine and rerun there."""

from layerstep.corefile.container import SUFFIX
from layerstep.corefile.rebuild import RestoredCore, read_core
from layerstep.corefile.writing import MOST_BYTES, CoreWritten, collect, write_core

__all__ = ["MOST_BYTES", "SUFFIX", "CoreWritten", "RestoredCore", "collect", "read_core", "write_core"]
