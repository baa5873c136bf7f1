"""The file-system tier: real files, real threads. Linux and macOS (it locks files)."""

from kvlab.tiering.fs.layout import FileMapper, RunFields
from kvlab.tiering.fs.mover import BlockRows
from kvlab.tiering.fs.record import FileTierStats
from kvlab.tiering.fs.threaded import ThreadedTier
from kvlab.tiering.fs.tier import FileSystemTier

__all__ = ["BlockRows", "FileMapper", "FileSystemTier", "FileTierStats", "RunFields", "ThreadedTier"]
