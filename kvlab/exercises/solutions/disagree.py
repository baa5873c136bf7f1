Call = tuple[str, list[int]]


def disagree() -> list[Call]:
    """Traffic on a cache of 3 slots, at most 6 calls, after which the two LRUs have evicted different blocks.

    A call is (name, blocks), for instance ("prepare_store", [1, 2]). Names: prepare_store, complete_store,
    prepare_load, complete_load, touch. Blocks are small ints. Each call must be one that the manager accepts.
    """
    return [
        ("prepare_store", [1, 2, 3]),
        ("complete_store", [2, 1, 3]),
        ("prepare_store", [4]),
    ]
