"""The `fs` tier: every block a file, moved by threads straight between the file and the block's row.

Mirrors `vllm/v1/kv_offload/tiering/fs/manager.py` of release 0.24, with direct I/O probed once (0.27), only bad files
deleted and failed loads turned into misses (0.28). Left out: block events and locality (0.26).

Notes:
* A block whose file is there is not written again, but its job is queued and pins it all the same.
* By default, as in vLLM: no size limit, no checksum, no limit on queued writes, no time limit. Each is an option here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvlab.base import OffloadKey, ReqContext
from kvlab.checks import checked_int, checked_namespace
from kvlab.tiering.fs.block_file import BlockFiles, direct_io_works
from kvlab.tiering.fs.index import FileIndex
from kvlab.tiering.fs.layout import FileMapper, RunFields
from kvlab.tiering.fs.mover import BlockMover, BlockRows
from kvlab.tiering.fs.pace import Pace
from kvlab.tiering.fs.record import log
from kvlab.tiering.fs.threaded import ThreadedTier, check_least, check_positive


class FileSystemTier(ThreadedTier):
    """`root_dir`: created if need be (OSError if that fails). `region`: rows of the CPU tier, required. `run`: what the
    files depend on; a default one serves tests.

    As in vLLM: `n_read_threads` 16, `n_write_threads` 16; each serves both queues, its own kind first.

    kvlab's own, off by default unless it says otherwise:
    * `namespace`: a folder of this name below `root_dir` holds everything, `max_bytes` included: tenants of one disk
      neither share blocks nor push each other's out. A name, no path.
    * `max_bytes`: least recently used files are removed so that all files never exceed it (those in quarantine come on
      top). At least one file. Processes that share the directory see each other's files by reading it again after every
      tenth of its files written, so together they may exceed it by about that much for a while.
    * `checksum`: a page with a checksum follows each row; a file that fails is moved to `quarantine` (the last 8 are
      kept) and its block is a miss. Such files have a directory of their own.
    * `max_queued_write_bytes`: blocks offered beyond it are not written, and counted; reads are never refused.
    * `write_bandwidth`, `read_bandwidth`: bytes per second, > 0.
    * `job_timeout_s`: seconds from submission, > 0. A job that takes longer is reported as failed, an existence check
      counts as a miss: nothing stays pinned or waited for much longer than this, whatever the disk does.
    * `correct_verdicts` (default True, as from 0.28): keys of a failed read become misses. False, as in 0.24: a block
      that exists but cannot be read is promoted again and again.
    * `correct_misses`: a block that this tier has written is a hit from then on, also for requests that were told it
      is a miss. In vLLM it stays a miss while any request that asked lives.
    * `direct_io`: None (default) probes, True insists (OSError if refused), False goes through the page cache.

    ValueError names a wrong argument. `problems`: the last messages, each with file and reason.
    """

    def __init__(
        self,
        root_dir: str | Path,
        *,
        region: BlockRows | None = None,
        run: RunFields | None = None,
        n_read_threads: int = 16,
        n_write_threads: int = 16,
        namespace: str | None = None,
        max_bytes: int | None = None,
        checksum: bool = False,
        max_queued_write_bytes: int | None = None,
        write_bandwidth: float | None = None,
        read_bandwidth: float | None = None,
        job_timeout_s: float | None = None,
        correct_verdicts: bool = True,
        correct_misses: bool = False,
        direct_io: bool | None = None,
        tier_type: str = "fs",
    ) -> None:
        super().__init__(
            tier_type, region, max_queued_write_bytes=max_queued_write_bytes, job_timeout_s=job_timeout_s,
            correct_verdicts=correct_verdicts, correct_misses=correct_misses,
        )  # fmt: skip
        assert region is not None
        row_bytes = region.row_bytes
        checked_int("n_read_threads", n_read_threads, at_least=1)
        checked_int("n_write_threads", n_write_threads, at_least=1)
        check_positive(write_bandwidth=write_bandwidth, read_bandwidth=read_bandwidth)
        root = os.path.abspath(root_dir)
        if namespace is not None:
            root = os.path.join(root, checked_namespace("namespace", namespace))
        self.mapper = FileMapper(root, (run or RunFields()).with_checksum(checksum))
        with _named(tier_type, root):
            self.mapper.write_config()
            self.mapper.block_dir.mkdir(exist_ok=True)
            directly = _use_direct_io(direct_io, self.mapper, row_bytes)
        files = BlockFiles(row_bytes, direct_io=directly, checksum=checksum)
        check_least("max_bytes", max_bytes, files.file_bytes)
        self.direct_io, self.file_bytes = files.direct_io, files.file_bytes
        self.index = None if max_bytes is None else FileIndex(max_bytes, self.mapper.path)
        with _named(tier_type, root):
            mover = BlockMover(
                self.mapper, files, region, self._jobs, self.index, self._record,
                Pace(write_bandwidth, self._stopped), Pace(read_bandwidth, self._stopped), job_timeout_s is not None,
                self._stopped,
            )  # fmt: skip
        self._sweeper = threading.Thread(target=mover.sweep, name="kvlab-fs-sweep")
        self._sweeper.daemon = True
        self._sweeper.start()
        if self.index is not None:
            # The limit means nothing before the files that are there are known.
            self._sweeper.join()
        self._start(mover, str(self.mapper.root_dir), n_read_threads, n_write_threads)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        if self.index is not None:
            self.index.touch(keys)

    def shutdown(self) -> None:
        super().shutdown()
        self._sweeper.join(self._timeout_s)
        self._mover.close()

    @property
    def threads(self) -> list[threading.Thread]:
        return [*super().threads, self._sweeper]


@contextmanager
def _named(tier_type: str, root: str) -> Iterator[None]:
    """An error of the system says which tier and which folder it was about."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        where = root if error.filename is None else error.filename
        raise OSError(error.errno, f"{tier_type} tier: {where} cannot be used: {os.strerror(error.errno)}") from error


def _use_direct_io(wanted: bool | None, mapper: FileMapper, row_bytes: int) -> bool:
    works = wanted is not False and direct_io_works(mapper.block_dir, row_bytes)
    if wanted and not works:
        raise OSError(f"direct_io: {mapper.block_dir} refuses direct I/O for rows of {row_bytes:,} bytes")
    if wanted is None and not works:
        log.info("%s: no direct I/O here, files go through the page cache", mapper.block_dir)
    return works
