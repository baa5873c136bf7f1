"""Load a trace: which format it is, what it holds, and its requests one after the other.

Notes:
* A `Trace` holds no requests. Each `for` reads the file again, in constant memory.
* Recognition looks at the first line; `format=` says it outright. Either way every record is checked.
* `partial_blocks="drop"` leaves only ids of full blocks, which is all that an engine stores: how many ids a request
  keeps then is input_tokens // block_tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from kvlab.checks import checked_int, unknown_name
from kvlab.traces.fields import BadRecord
from kvlab.traces.files import Progress, Source, open_source
from kvlab.traces.folder import read_folder, trace_files
from kvlab.traces.formats import FORMATS, TraceFormat
from kvlab.traces.formats.mooncake import Mooncake, infer_block_tokens
from kvlab.traces.progress import Bar
from kvlab.traces.request import TraceError, TraceRequest

_PEEKED = 1000
_SHOWN_ERRORS = 20


class Trace:
    """An iterable of `TraceRequest`. Attributes: `path`, `format` (its name), `block_tokens` (tokens of a full block,
    None where they differ or are unknown), `has_ids`, and after a pass `skipped` and the first of the `errors`."""

    def __init__(
        self,
        path: Path,
        kind: type[TraceFormat],
        *,
        on_error: str,
        partial_blocks: str,
        block_tokens: int | None,
        progress: Progress | bool,
    ) -> None:
        self.path = path
        self.format = kind.name
        self.has_ids = kind.has_ids
        self.block_tokens = block_tokens
        self.partial_blocks = "keep"
        self.skipped = 0
        self.errors: list[str] = []
        self._kind = kind
        self._on_error = on_error
        self._progress: Progress | bool = False
        self.block_tokens = self._peek(block_tokens)
        if partial_blocks == "drop" and self.has_ids and self.block_tokens is None:
            raise ValueError(
                f"{path}: partial_blocks='drop' needs to know the tokens of a block, and this trace does not tell: "
                "give block_tokens"
            )
        self.partial_blocks = partial_blocks
        self._progress = progress

    def _peek(self, block_tokens: int | None) -> int | None:
        """Reads the first requests, so that what is wrong at the start comes out at once."""
        reader = self._kind(block_tokens)
        head = list(islice(self._requests(reader), _PEEKED if self._kind is Mooncake else 1))
        self.skipped, self.errors = 0, []
        if any(request.block_tokens is not None for request in head):
            return None
        if block_tokens is None and self._kind is Mooncake:
            return infer_block_tokens(head)
        return reader.block_tokens

    def __iter__(self) -> Iterator[TraceRequest]:
        self.skipped, self.errors = 0, []
        requests = self._requests(self._kind(self.block_tokens))
        return requests if self.partial_blocks == "keep" else map(self._full_blocks_only, requests)

    def _requests(self, reader: TraceFormat) -> Iterator[TraceRequest]:
        with Bar.for_file(self._progress, self.path.name) as progress:
            if self.path.is_dir():
                yield from read_folder(self.path, reader, self._on_bad, progress)
                return
            with open_source(self.path, progress) as source:
                try:
                    yield from reader.read(source, self._on_bad)
                except TraceError as error:
                    self._cut_off(error)

    def _on_bad(self, source: Source, bad: BadRecord) -> None:
        error = source.error(str(bad))
        if self._on_error == "raise":
            raise error from None
        self._note(error)

    def _cut_off(self, error: TraceError) -> None:
        if self._on_error == "raise":
            raise error
        self._note(error)

    def _note(self, error: TraceError) -> None:
        self.skipped += 1
        if len(self.errors) < _SHOWN_ERRORS:
            self.errors.append(str(error))

    def _full_blocks_only(self, request: TraceRequest) -> TraceRequest:
        if request.block_tokens is not None:
            raise ValueError(f"{self.path}: its blocks differ in size: partial_blocks='drop' does not apply")
        full = request.input_tokens // (self.block_tokens or 1)
        return request if full >= len(request.hash_ids) else replace(request, hash_ids=request.hash_ids[:full])

    def __repr__(self) -> str:
        return f"Trace({str(self.path)!r}, format={self.format!r}, block_tokens={self.block_tokens})"


def load(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    partial_blocks: Literal["keep", "drop"] = "keep",
    block_tokens: int | None = None,
    progress: Progress | bool = False,
) -> Trace:
    """A trace file, plain, .gz or .zst, or a folder of files that make up one trace (WEKA sessions, LMCache logs).

    * `format`: a name of `kvlab.traces.FORMATS`; None: look at the first line.
    * `on_error`: a record that cannot be used is fatal ("raise"), or left out and counted in `skipped` ("skip").
    * `partial_blocks`: "keep" the id of a last, partly filled block where the format has one, or "drop" it.
    * `block_tokens`: tokens of a full block, for formats that do not tell.
    * `progress`: True for a progress bar (tqdm), or a callable that gets bytes read and bytes in all.

    Raises TraceError (a ValueError) with file and line for what is wrong in it, ValueError for a wrong option.
    """
    for name, value, allowed in (
        ("on_error", on_error, ("raise", "skip")),
        ("partial_blocks", partial_blocks, ("keep", "drop")),
    ):
        if value not in allowed:
            raise unknown_name(name, value, allowed)
    if format is not None and format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if block_tokens is not None:
        checked_int("block_tokens", block_tokens, 1)
    file = Path(path)
    kind = _recognised(file, format)
    return Trace(
        file,
        kind,
        on_error=on_error,
        partial_blocks=partial_blocks,
        block_tokens=block_tokens,
        progress=progress,
    )


def _recognised(path: Path, name: str | None) -> type[TraceFormat]:
    first_file = trace_files(path)[0] if path.is_dir() else path
    with open_source(first_file) as source:
        if name is not None:
            return FORMATS[name]
        if "oraclegeneral" in first_file.name.lower().replace("_", "").replace("-", ""):
            return FORMATS["oracle-general"]
        first = next(source.lines(), b"")
    for kind in FORMATS.values():
        if kind.matches(first):
            return kind
    if not first:
        raise TraceError(f"{first_file}: holds nothing but blank lines")
    raise TraceError(f"{first_file}:1: no known trace format starts like this: {_start(first)}\n{_known()}")


def _start(first: bytes) -> str:
    return repr(first[:80].decode(errors="replace")) + ("..." if len(first) > 80 else "")


def _known() -> str:
    return "\n".join(f"  {name}: {kind.needs}" for name, kind in FORMATS.items())


def requests_of(trace: Any) -> Iterator[TraceRequest]:
    """Requests of a path, a `Trace`, or any iterable of requests."""
    return iter(load(trace) if isinstance(trace, str | os.PathLike) else trace)
