"""Exercise `num-blocks`: how many blocks fit."""

from __future__ import annotations

from itertools import product
from typing import Any

from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import expect


def case_400_gib(num_blocks: Any) -> None:
    """400 GiB of 2 MiB blocks are 204,800."""
    called = "num_blocks(400 * 2**30, 2 * 2**20)"
    expect(num_blocks(400 * 2**30, 2 * 2**20), 204_800, called=called, look_at="GiB and MiB are powers of two")


def case_two_workers(num_blocks: Any) -> None:
    """Two workers with 1 MiB each make the same block."""
    called = "num_blocks(400 * 2**30, 2**20, workers=2)"
    expect(num_blocks(400 * 2**30, 2**20, workers=2), 204_800, called=called, look_at="a row holds all workers' parts")


def case_whole_blocks_only(num_blocks: Any) -> None:
    """What does not hold a whole block holds none."""
    expect(num_blocks(99, 100), 0, called="num_blocks(99, 100)", look_at="round down")
    expect(num_blocks(299, 100), 2, called="num_blocks(299, 100)", look_at="round down, to an int")


def case_rows_are_padded(num_blocks: Any) -> None:
    """Rows of 5,000 bytes take 8,192 each where 4,096 is the alignment."""
    called = "num_blocks(16_384, 5_000, row_alignment=4_096)"
    expect(num_blocks(16_384, 5_000, row_alignment=4_096), 2, called=called, look_at="round the row up")
    called = "num_blocks(8_192, 4_096, row_alignment=4_096)"
    expect(num_blocks(8_192, 4_096, row_alignment=4_096), 2, called=called, look_at="an aligned row needs no padding")


def case_padding_is_at_the_end(num_blocks: Any) -> None:
    """Two workers' 2,000 bytes share one 4,096-byte row: the padding comes after the last part."""
    called = "num_blocks(40_960, 2_000, workers=2, row_alignment=4_096)"
    expect(num_blocks(40_960, 2_000, 2, 4_096), 10, called=called, look_at="add up first, round up then")


def case_fits_by_laying_them_down(num_blocks: Any) -> None:
    """Small sizes, tried by laying row after row until the next does not fit."""
    for size, part, workers, alignment in product((0, 1, 50, 640), (1, 7, 64), (1, 3), (1, 8)):
        row = part * workers
        while row % alignment:
            row += 1
        fit = 0
        while (fit + 1) * row <= size:
            fit += 1
        called = f"num_blocks({size}, {part}, workers={workers}, row_alignment={alignment})"
        expect(num_blocks(size, part, workers, alignment), fit, called=called, look_at="one rule at a time")


EXERCISE = Exercise(
    name="num-blocks",
    title="how many blocks fit",
    notebook="01",
    minutes=5,
    level=1,
    entry="num_blocks",
    task="From `cpu_bytes_to_use` to a number of blocks, as vLLM does it. Predict the number for 400 GiB first.",
    teaches="what the one setting buys, and where padding goes.",
    does_not_teach="hybrid models, where each cache group has keys of its own (the row is the same).",
    stretch="with 2 MiB minus one byte a block and 4,096 alignment, how many bytes of 400 GiB are padding?",
    hints=(
        "The row first: all workers' parts. Then the padding. Then how many rows.",
        "`-row % row_alignment` is what is missing up to the next multiple; `//` rounds down.",
    ),
    cases=(
        case_400_gib,
        case_two_workers,
        case_whole_blocks_only,
        case_rows_are_padded,
        case_padding_is_at_the_end,
        case_fits_by_laying_them_down,
    ),
    wrong=(
        Wrong("no padding", "case_rows_are_padded", (("    row += -row % row_alignment\n", ""),)),
        Wrong(
            "pads each worker's part",
            "case_padding_is_at_the_end",
            (("bytes_per_worker * workers", "(bytes_per_worker + -bytes_per_worker % row_alignment) * workers"),),
        ),
        Wrong("forgets the workers", "case_two_workers", (("bytes_per_worker * workers", "bytes_per_worker"),)),
        Wrong(
            "rounds to the nearest",
            "case_whole_blocks_only",
            (("return cpu_bytes_to_use // row", "return round(cpu_bytes_to_use / row)"),),
        ),
        Wrong("always adds a page", "case_400_gib", (("-row % row_alignment", "row_alignment - row % row_alignment"),)),
    ),
)
