def max_store_rate(write_bandwidth: float, block_bytes: int, cpu_blocks: int, seconds: float) -> float:
    """The highest steady rate, in blocks/s, at which blocks can be stored for `seconds` before a store is refused.

    Each stored block is written to disk at `write_bandwidth` bytes/s, one after the other, and stays pinned in one of
    the `cpu_blocks` slots of the CPU tier until its write is over. Evicting what is not pinned costs nothing.
    `seconds` may be `float("inf")`.
    """
    written_per_s = write_bandwidth / block_bytes
    return written_per_s + cpu_blocks / seconds
