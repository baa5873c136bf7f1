"""The rigs of the `fs` tier's tests over an `obj` tier, and a look at its store from outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvlab.object_store import ObjectStoreTier
from kvlab.tiering.region import SharedRegion
from tests.fs.rig import ROW, Jobs, Rig, small_region


@dataclass(frozen=True)
class Place:
    """Options that lead a tier to one store."""

    options: dict[str, Any]

    @property
    def protocol(self) -> str:
        return str(self.options.get("protocol", "s3"))


class ObjectRig(Rig):
    def _make_tier(self, root: Any, region: SharedRegion, **options: Any) -> ObjectStoreTier:
        return ObjectStoreTier(region=region, **root.options, **options)


@contextmanager
def rig(place: Place, num_blocks: int = 8, row_bytes: int = ROW, **options: Any) -> Iterator[ObjectRig]:
    with small_region(num_blocks, row_bytes) as region:
        made = ObjectRig(place, region, **options)
        try:
            yield made
        finally:
            made.manager.shutdown()


@contextmanager
def jobs(place: Place, num_blocks: int = 8, row_bytes: int = ROW, **options: Any) -> Iterator[Jobs]:
    """A tier without a manager."""
    with small_region(num_blocks, row_bytes) as region:
        tier = ObjectStoreTier(region=region, **place.options, **options)
        try:
            yield Jobs(tier, region)
        finally:
            tier.shutdown()


class Outside:
    """The objects of a tier as another client sees them, through the same library."""

    def __init__(self, tier: ObjectStoreTier) -> None:
        self.mapper = tier.mapper
        self.store = tier._mover._files.store.fs

    def path(self, block: bytes) -> str:
        return self.mapper.path(block)

    def get(self, block: bytes) -> bytes:
        return bytes(self.store.cat_file(self.path(block)))

    def put(self, block: bytes, data: bytes) -> None:
        self.store.pipe_file(self.path(block), data)

    def remove(self, block: bytes) -> None:
        self.store.rm_file(self.path(block))

    def has(self, block: bytes) -> bool:
        return bool(self.store.exists(self.path(block)))

    def names(self) -> list[str]:
        """All of them, from the tier's root on."""
        root = self.store._strip_protocol(str(self.mapper.root_dir))
        return sorted(name.removeprefix(f"{root}/") for name in self.store.find(root))
