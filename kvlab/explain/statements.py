"""Popular statements about the pull request that a reader of these commands will meet, and what the code does.

Only those that the configuration at hand gives rise to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvlab.config import InputParts
from kvlab.explain.model import Correction


def corrections(parts: InputParts) -> Iterator[Correction]:
    config = parts.kv_transfer
    if config is not None:
        yield Correction(
            "the pull request replaced the ctypes block status with __slots__",
            "no release has: 0.24, the first with the evictable list, and all after it to 0.33 keep the ctypes one",
        )
        yield Correction(
            "blocks are offloaded when GPU memory runs short",
            "each block is offered to the CPU tier as soon as it is full"
            + (", prompt blocks only by default" if config.offload_prompt_only else ""),
        )
        if config.offload_prompt_only:
            yield Correction(
                "the generated text of each turn makes new stores",
                "offload_prompt_only is true: it is stored when it comes back as part of the next turn's prompt",
            )
    if config is not None and config.secondary_tiers:
        yield Correction(
            "blocks sink from CPU memory to NVMe when the CPU tier is full",
            "they are written through right after they land in CPU memory; an eviction only drops the copy there",
        )
        yield Correction(
            "NVMe makes evictions more frequent",
            "it makes them harder: blocks that wait for their write are pinned, and a scan walks past each of them",
        )
        yield Correction(
            "every batch of stores starts the scan, and that is the hot spot",
            "nearly all of the scan's time goes to one-block evictions for promotions, inside lookup",
        )
    serve = parts.serve
    spelt_out = serve is not None and serve.setting("disable_hybrid_kv_cache_manager").origin is not None
    if serve is not None and config is not None and spelt_out and not serve.disable_hybrid_kv_cache_manager:
        yield Correction(
            "--no-disable-hybrid-kv-cache-manager is needed for this model",
            "it only spells out the default: OffloadingConnector supports the hybrid manager",
        )
    yield from _request_rates(parts)


def _request_rates(parts: InputParts) -> Iterator[Correction]:
    rows: list[dict[str, Any]] = (parts.published or {}).get("rows", [])
    if len(rows) != 2 or parts.guidellm is None:
        return
    before, after = rows
    tokens = parts.guidellm.output_tokens
    rates = [row["output_tok_s"] / tokens for row in (before, after)]
    rounded = after["per_sec"] / before["per_sec"]
    if rounded / (rates[1] / rates[0]) > 1.2:
        yield Correction(
            f"requests per second rose about {rounded:.0f}-fold",
            f"that is {before['per_sec']} against {after['per_sec']}, rounded to one digit; {tokens} output tokens a "
            f"request give {rates[0]:.2f} and {rates[1]:.2f}, {rates[1] / rates[0]:.1f} times, like the tokens "
            f"({after['total_tok_s'] / before['total_tok_s']:.1f} times)",
        )
