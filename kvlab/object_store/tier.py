"""The `obj` tier: every block an object in an S3-compatible store, or in any other store that fsspec reaches.

Mirrors `vllm/v1/kv_offload/tiering/obj/manager.py` of release 0.24: the type's name, `store_config`, `prefix`,
`io_threads`, names as the `fs` tier's below `bucket/prefix`, one question to the store at start-up. There NIXL moves
the bytes and a job succeeds or fails as a whole; here threads do, block by block, over fsspec. Left out: block events.

Notes:
* fsspec has one thread of its own per process, which all its users share and which does not end with a tier.
* Costs an HTTP request a block written or read. A question about existence costs one for a hit, two for a miss, as s3fs
  also looks whether it is a folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from kvlab.checks import checked_int
from kvlab.object_store.objects import ASKED_AT_ONCE, ObjectMover, Objects
from kvlab.object_store.store import Remote, Store
from kvlab.tiering.fs import BlockRows, FileMapper, RunFields, ThreadedTier
from kvlab.tiering.fs.pace import Pace
from kvlab.tiering.fs.threaded import check_positive


class ObjectStoreTier(ThreadedTier):
    """`store_config`: see `Store`. `prefix`: folder in the bucket. `io_threads` 4, as in vLLM: half of them serve reads
    first, the others writes. `region`: rows of the CPU tier, required. `run`: what the objects depend on.

    kvlab's own:
    * `protocol` (default "s3"): any that fsspec knows; `bucket` is then a folder. `storage_options`: further arguments
      of its file system.
    * `request_timeout_s` (default 30): a request, with all its tries, that takes longer is cancelled, and so is a batch
      of existence checks. Stores whose requests cannot be cancelled (`memory`, `file`) have no such limit.
    * `checksum`, `max_queued_write_bytes`, `write_bandwidth`, `read_bandwidth`, `job_timeout_s`, `correct_verdicts`,
      `correct_misses`: as `FileSystemTier`, off by default but `correct_verdicts`. Without `job_timeout_s` a job
      lasts as long as its requests may.

    ValueError names a wrong argument; OSError, with store and reason, if `config.json` cannot be written there.
    `problems`: the last messages, each with object and reason.
    """

    def __init__(
        self,
        store_config: Mapping[str, Any],
        *,
        prefix: str = "",
        io_threads: int = 4,
        region: BlockRows | None = None,
        run: RunFields | None = None,
        protocol: str = "s3",
        storage_options: Mapping[str, Any] | None = None,
        request_timeout_s: float | None = None,
        checksum: bool = False,
        max_queued_write_bytes: int | None = None,
        write_bandwidth: float | None = None,
        read_bandwidth: float | None = None,
        job_timeout_s: float | None = None,
        correct_verdicts: bool = True,
        correct_misses: bool = False,
        tier_type: str = "obj",
    ) -> None:
        super().__init__(
            tier_type, region, max_queued_write_bytes=max_queued_write_bytes, job_timeout_s=job_timeout_s,
            correct_verdicts=correct_verdicts, correct_misses=correct_misses,
        )  # fmt: skip
        assert region is not None
        checked_int("io_threads", io_threads, at_least=1)
        check_positive(write_bandwidth=write_bandwidth, read_bandwidth=read_bandwidth)
        store = Store.from_config(store_config)
        self.mapper = FileMapper(_folder(store, prefix), (run or RunFields()).with_checksum(checksum))
        remote = Remote(protocol, store, storage_options or {}, request_timeout_s, io_threads + ASKED_AT_ONCE)
        objects = Objects(remote, protocol, region.row_bytes, checksum=checksum)
        self.object_bytes = objects.file_bytes
        where = f"{protocol}://{self.mapper.root_dir}" + (f" at {store.endpoint}" if store.endpoint else "")
        self._write_config(objects, where)
        mover = ObjectMover(
            self.mapper, objects, region, self._jobs, self._record, Pace(write_bandwidth, self._stopped),
            Pace(read_bandwidth, self._stopped), job_timeout_s is not None, self._stopped,
        )  # fmt: skip
        self._start(mover, where, io_threads - io_threads // 2, io_threads // 2)

    def _write_config(self, objects: Objects, where: str) -> None:
        """Shows at start-up, not at the first store, that the bucket is there and the credentials are good."""
        path = str(self.mapper.config_path)
        try:
            if not objects.store.call("exists", path):
                objects.put(path, self.mapper.config_text.encode())
        except Exception as error:  # each store has its own
            raise OSError(
                f"{self.tier_type} tier: {where} cannot be written to: {error or type(error).__name__}; "
                "check bucket, endpoint_override, scheme, access_key and secret_key"
            ) from error


def _folder(store: Store, prefix: str) -> str:
    """Where everything is. ValueError for a prefix that leaves the bucket."""
    if not isinstance(prefix, str) or prefix.startswith("/") or ".." in PurePosixPath(prefix).parts:
        raise ValueError(f"prefix must be a folder inside the bucket, without a leading '/', got {prefix!r}")
    return f"{store.bucket}/{prefix}" if prefix else store.bucket
