"""The stores that the tests use: a server of their own, memory, and a folder."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.object_store.rig import Place
from tests.object_store.server import S3Server, running_server, store_config


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    """One for all tests that leave it alone."""
    _need_packages()
    with running_server() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[S3Server]:
    """To be stopped and killed."""
    _need_packages()
    with running_server() as server:
        yield server


@pytest.fixture(params=["s3", "memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store of each kind."""
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("server")
        return Place({"store_config": store_config(server.bucket(), server.port)})
    bucket = str(tmp_path) if request.param == "file" else f"/test-{uuid.uuid4().hex}"
    pytest.importorskip("fsspec")
    return Place({"protocol": request.param, "store_config": {"bucket": bucket}})


def _need_packages() -> None:
    for package in ("s3fs", "moto.server"):
        pytest.importorskip(package, reason=f"needs {package}: pip install 'kvlab[dev]'")
