"""Engines with real bytes that are closed when the test ends."""

from tests.wall.conftest import rigs

__all__ = ["rigs"]
