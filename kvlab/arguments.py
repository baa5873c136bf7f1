"""What the command line's values must be, said before anything runs: rates, and files and folders to read and write.

Each function takes the text of one argument and gives its value, or raises argparse.ArgumentTypeError, which becomes
one message that names the argument, and exit code 2.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Says a wrong value in one line; the usage above it is for arguments that are missing or unknown."""

    def error(self, message: str) -> NoReturn:
        if not message.startswith("argument "):
            super().error(message)
        self.exit(2, f"{self.prog}: {message}\n")


def bandwidth(text: str) -> float:
    """Bytes a second above 0: "3e9", "3GB/s", "2.5 GiB/s"."""
    from kvlab.config import ConfigError, read_bytes

    try:
        value = float(text)
    except ValueError:
        try:
            value = float(read_bytes(text.strip().removesuffix("/s").removesuffix("ps"), "bandwidth"))
        except ConfigError:
            value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no bandwidth: give bytes/s above 0, as 3e9 or 3GB/s")
    return value


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return value


def in_file(text: str) -> str:
    """A file that is there."""
    path = Path(text)
    if not text or not path.exists():
        raise argparse.ArgumentTypeError(f"{text!r} does not exist; give a file")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; give a file")
    return text


def out_file(text: str) -> str:
    """A file that can be written, its folders made where they are missing."""
    path = Path(text)
    if not text:
        raise argparse.ArgumentTypeError("'' names no file; give the name of a file to write")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; give the name of a file to write")
    _can_hold(path.parent, text)
    return text


def out_folder(text: str) -> str:
    """A folder in which files can be written, made where it is missing."""
    path = Path(text)
    if not text:
        raise argparse.ArgumentTypeError("'' names no folder")
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a file; give a folder")
    _can_hold(path, text)
    return text


def _can_hold(folder: Path, text: str) -> None:
    """The nearest folder above that exists must be one, and take new files."""
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} cannot be made: {str(there)!r} is a file, not a folder")
    if not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: no permission to write in {str(there)!r}")
