def spot_the_misconception() -> dict[str, bool | None]:
    """Which of these is true of vLLM 0.24's tiers? True or False for each; None is not decided yet.

    a: A block that is evicted from the CPU tier is written to disk at that moment.
    b: A block is copied from GPU to CPU only when the GPU runs out of room.
    c: While a block waits to be written to disk, it cannot be evicted from the CPU tier.
    d: `lookup` only asks: it never evicts anything.
    e: A block promoted from disk stays pinned until the request that asked for it has read it.
    f: With no free and no idle block in the CPU tier, a block that lies on disk is a miss.
    g: Evicting a block from the CPU tier removes it from disk too.
    h: A block of a finished write to one of two disks can be evicted while the other disk still writes it.
    """
    return {"a": False, "b": False, "c": True, "d": False, "e": False, "f": True, "g": False, "h": False}
