"""Exercise `kv-bytes`: what one block weighs."""

from __future__ import annotations

from itertools import product
from typing import Any

from kvlab.config import KVCacheGroup
from kvlab.exercises.exercise import Exercise, Wrong
from kvlab.exercises.report import expect


def case_keys_and_values(kv_bytes: Any) -> None:
    """One token, one layer, one head of size 1, one byte a number: a key and a value."""
    expect(kv_bytes(1, 1, 1, 1, 1), 2, called="kv_bytes(1, 1, 1, 1, 1)", look_at="keys *and* values")


def case_two_mebibytes(kv_bytes: Any) -> None:
    """The course's block: 16 tokens, 8 layers, 16 heads of 256, bf16 is exactly 2 MiB."""
    expect(kv_bytes(16, 8, 16, 256, 2), 2 * 2**20, called="kv_bytes(16, 8, 16, 256, 2)", look_at="every factor once")


def case_two_workers_share(kv_bytes: Any) -> None:
    """Two workers with 8 heads each store as much as one with 16."""
    called = "kv_bytes(16, 8, 16, 256, 2, workers=2)"
    expect(kv_bytes(16, 8, 16, 256, 2, workers=2), 2 * 2**20, called=called, look_at="heads are split, not copied")


def case_few_heads_are_copied(kv_bytes: Any) -> None:
    """One head on four workers is stored four times."""
    called = "kv_bytes(1, 1, 1, 64, 2, workers=4)"
    expect(kv_bytes(1, 1, 1, 64, 2, workers=4), 4 * 256, called=called, look_at="at least one head a worker")


def case_counts_like_the_layout(kv_bytes: Any) -> None:
    """96 shapes: as many bytes as kvlab's layout arithmetic (and vLLM's) finds."""
    for tokens, layers, heads, size, dtype, workers in product((1, 16), (1, 6), (1, 2, 8), (64, 80), (1, 2), (1, 2)):
        group = KVCacheGroup("g", "full_attention", layers, None, heads, size, tokens)
        expected = group.page_bytes(dtype, workers) * layers * workers
        called = f"kv_bytes({tokens}, {layers}, {heads}, {size}, {dtype}, workers={workers})"
        expect(kv_bytes(tokens, layers, heads, size, dtype, workers), expected, called=called, look_at="an int, exact")


EXERCISE = Exercise(
    name="kv-bytes",
    title="what one block weighs",
    notebook="01",
    minutes=5,
    level=1,
    entry="kv_bytes",
    task="A block holds the keys and values of a few tokens, for all layers that share it. Compute its bytes.",
    teaches="the factors, and that tensor parallelism splits heads but cannot split one head.",
    does_not_teach="quantized caches, latent attention (MLA), or models whose layers differ.",
    stretch="a model with 4 KV heads on 8 workers: how much memory does the copying cost it?",
    hints=(
        "Multiply: tokens, layers, heads, head size, bytes a number. And a key is not enough.",
        "Per worker: max(1, num_kv_heads // workers) heads. Then all workers together.",
    ),
    cases=(
        case_keys_and_values,
        case_two_mebibytes,
        case_two_workers_share,
        case_few_heads_are_copied,
        case_counts_like_the_layout,
    ),
    wrong=(
        Wrong("keys without values", "case_keys_and_values", (("2 * block_tokens", "block_tokens"),)),
        Wrong(
            "every worker stores everything",
            "case_two_workers_share",
            (("max(1, num_kv_heads // workers)", "num_kv_heads"),),
        ),
        Wrong(
            "no head is ever copied",
            "case_few_heads_are_copied",
            (("max(1, num_kv_heads // workers)", "num_kv_heads / workers"),),
        ),
        Wrong(
            "bits instead of bytes", "case_keys_and_values", (("dtype_bytes * workers", "dtype_bytes * 8 * workers"),)
        ),
        Wrong("a block of one worker only", "case_two_workers_share", (("dtype_bytes * workers", "dtype_bytes"),)),
        Wrong("bf16 always", "case_keys_and_values", (("dtype_bytes * workers", "2 * workers"),)),
    ),
)
