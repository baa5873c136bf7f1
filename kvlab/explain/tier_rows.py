"""Rows of the offload tiers: spec, CPU bytes, eviction policy, secondary tiers, and the defaults nobody wrote down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvlab.config import KVTransferConfig, TierConfig, format_bytes
from kvlab.config.kv_transfer import TIERING_SPEC
from kvlab.config.tier_options import TierOption, options_of
from kvlab.config.tiers import FS_DEFAULTS, OBJ_IO_THREADS
from kvlab.explain.capacity import Capacity
from kvlab.explain.model import Row
from kvlab.explain.serve_rows import came_from, connector_rows
from kvlab.policies.registry import VLLM_MODULE

SECTION = "kv_transfer_config"
#: what vLLM's `lru` is, by release: the name kvlab gives it, and what it does
LRU_BY_RELEASE = (
    ("0.23 and before", "full_scan_lru", "walks all resident blocks from the cold end, past every pinned one"),
    ("0.24 to 0.30", "evictable_list_lru", "walks a list of idle blocks only (PR #46216)"),
    ("0.31 and later", "logical_recency_lru", "keeps a heap of idle blocks by the last use of their request"),
)
_OWN_POLICIES = {name: (release, what) for release, name, what in LRU_BY_RELEASE}


def tier_rows(config: KVTransferConfig, tier: Capacity, assumed: bool) -> Iterator[Row]:
    """`assumed`: the layout rests on assumed numbers."""
    yield from connector_rows(config)
    yield _spec(config)
    yield _cpu_bytes(config, tier, assumed)
    yield _policy(config)
    if config.cache_policy_module_path is not None:
        yield _policy_module(config, config.cache_policy_module_path)
    for entry in config.secondary_tiers:
        yield from _tier(entry)
    yield from _defaults(config, tier)
    for key, value in {**config.unknown, **config.other}.items():
        yield Row(SECTION, key, str(value)[:60], came_from(config, key), "not read by kvlab", "no effect here")


def _spec(config: KVTransferConfig) -> Row:
    if config.spec_name == TIERING_SPEC:
        meaning = "a CPU tier, and secondary tiers below it"
        consequence = (
            "a block is written to every tier right after it lands in CPU memory, and pinned until the slowest has "
            "reported; evicting it later only drops it"
        )
    else:
        meaning, consequence = "a CPU tier only", "an evicted block is gone"
    return Row(SECTION, "spec_name", config.spec_name, came_from(config, "spec_name"), meaning, consequence)


def _cpu_bytes(config: KVTransferConfig, tier: Capacity, assumed: bool) -> Row:
    size = format_bytes(tier.cpu_bytes_to_use)
    per_worker = format_bytes(tier.cpu_bytes_to_use / tier.world_size)
    unused = tier.cpu_bytes_to_use - tier.cpu_bytes_used
    left = f" ({unused:,} bytes are left over)" if unused else ""
    return Row(
        SECTION, "cpu_bytes_to_use", f"{tier.cpu_bytes_to_use:,}", came_from(config, "cpu_bytes_to_use"),
        f"{size} for all {tier.world_size} workers together ({per_worker} each)",
        f"{tier.num_blocks:,} blocks of {format_bytes(tier.bytes_per_block)} over the workers"
        f" ({format_bytes(tier.bytes_per_block_per_worker)} on each){left}",
        assumed,
    )  # fmt: skip


def _policy(config: KVTransferConfig) -> Row:
    name = config.eviction_policy
    if name == "lru":
        meaning = "least recently used; which one depends on the release"
        consequence = "; ".join(f"{release}: {what} ({own})" for release, own, what in LRU_BY_RELEASE)
    elif name in _OWN_POLICIES:
        release, what = _OWN_POLICIES[name]
        meaning, consequence = f"kvlab's name for the lru of vLLM {release}", what
    elif name == "arc":
        meaning = "adaptive replacement: seen once, seen again, and ghosts of both"
        consequence = "has no evictable list in any release to 0.33: it walks pinned blocks"
    else:
        meaning, consequence = "a policy of your own", "its cost per eviction is for you to measure"
    return Row(SECTION, "eviction_policy", name, came_from(config, "eviction_policy"), meaning, consequence)


def _policy_module(config: KVTransferConfig, module_path: str) -> Row:
    where = came_from(config, "cache_policy_module_path")
    if module_path == VLLM_MODULE:
        meaning, consequence = "kvlab's policies by their names", "vLLM 0.27 and later loads the one above from it"
    else:
        meaning, consequence = "the module that holds the class named above", "vLLM reads it from 0.27 on"
    return Row(SECTION, "cache_policy_module_path", module_path, where, meaning, consequence)


def _tier(entry: TierConfig) -> Iterator[Row]:
    name = f"secondary_tiers[{entry.index}]"
    kinds = {"fs": "files, one a block", "obj": "an object store", "example": "a dictionary, for tests"}
    limit = (
        "the least recently used files go when max_bytes are reached"
        if "max_bytes" in entry.options else "no size limit and no eviction of its own"
    )  # fmt: skip
    yield Row(
        SECTION, f"{name}.type", entry.type, str(entry.origins.get("type", entry.origin or "given")),
        f"tier {entry.index + 1} in lookup order: {kinds.get(entry.type, 'kvlab or custom tier')}",
        f"{limit}; a block not in CPU memory is promoted from it one by one, each "
        "promotion evicting one CPU block when the tier is full",
    )  # fmt: skip
    meanings = _meanings(entry)
    own = options_of(entry.type)
    for key, value in entry.public_options().items():
        where = str(entry.origins.get(key, entry.origin or "given"))
        if key in own:
            option = own[key]
            yield Row(
                SECTION, f"{name}.{key}", option.shown(value), where,
                f"of kvlab only, vLLM refuses it: {option.meaning}", option.consequence,
            )  # fmt: skip
        else:
            yield Row(SECTION, f"{name}.{key}", str(value), where, *meanings.get(key, ("option of the tier", "")))
    if own:
        yield from _bounds(entry, name, own)


def _meanings(entry: TierConfig) -> dict[str, tuple[str, str]]:
    """Meaning and consequence of what vLLM's own tiers take."""
    if entry.type != "obj":
        return {"root_dir": ("folder of the files; which disk is behind it was not said", "")}
    return {
        "store_config": (
            "bucket, endpoint and credentials of the store; the keys are not shown",
            "asked once at start-up: a wrong bucket or key stops the start, not the first store",
        ),
        "prefix": ("folder in the bucket", "names below it are the fs tier's"),
        "io_threads": ("threads that move blocks", "half of them serve reads first, the others writes"),
    }


def _bounds(entry: TierConfig, name: str, own: Mapping[str, TierOption]) -> Iterator[Row]:
    """The two bounds that decide how long a slow or a hung disk can hold pins, where nobody has set them."""
    for key in ("max_queued_write_bytes", "job_timeout_s"):
        if key not in entry.options:
            option = own[key]
            yield Row(SECTION, f"{name}.{key}", "none", "default", f"of kvlab only: {option.meaning}", option.unset)


def _defaults(config: KVTransferConfig, tier: Capacity) -> Iterator[Row]:
    threshold = config.store_threshold
    yield Row(
        SECTION, "store_threshold", str(threshold), came_from(config, "store_threshold"),
        "lookups a key must have had before it is stored",
        "every block is stored the first time" if threshold < 2 else "rare blocks are not stored; CPU tier only",
    )  # fmt: skip
    prompt_only = config.offload_prompt_only
    yield Row(
        SECTION, "offload_prompt_only", str(prompt_only).lower(), came_from(config, "offload_prompt_only"),
        "whether only prompt blocks are stored",
        "blocks of generated text are not stored; the text is stored when it comes back as the next turn's prompt"
        if prompt_only else "blocks of generated text are stored too",
    )  # fmt: skip
    tokens = tier.block_size_tokens * tier.block_size_factor
    blocks = f"{tier.block_size_factor} GPU block{'s' if tier.block_size_factor > 1 else ''}"
    key = "blocks_per_chunk" if config.is_set("blocks_per_chunk") else "block_size"
    yield Row(
        SECTION, key, f"{tokens} tokens", came_from(config, key), f"an offloaded block is {blocks}",
        f"{tier.num_groups} cache groups: {tier.num_groups} keys for the same {tokens} tokens",
    )  # fmt: skip
    pins = "the queue before them has no limit: every waiting write pins its CPU block"
    for entry in config.secondary_tiers:
        if entry.type == "obj" and "io_threads" not in entry.options:
            yield Row(
                SECTION, f"secondary_tiers[{entry.index}].io_threads", str(OBJ_IO_THREADS), "default",
                "threads that move blocks, half of them reads first", pins,
            )  # fmt: skip
        if entry.type != "fs":
            continue
        for key, value in FS_DEFAULTS.items():
            if key not in entry.options:
                reads = key == "n_read_threads"
                yield Row(
                    SECTION, f"secondary_tiers[{entry.index}].{key}", str(value), "default",
                    f"threads that serve {'reads' if reads else 'writes'} first, the other kind when there are none",
                    "" if reads else pins,
                )  # fmt: skip
