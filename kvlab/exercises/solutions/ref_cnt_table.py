def next_ref_cnt(ref_cnt: int | None, call: str) -> int | None:
    """The `ref_cnt` of one block after a call of the manager that names it; None: the block is not resident.

    -1 is being written, 0 idle, n > 0 read by n. The calls: "prepare_store", "complete_store" (the data landed),
    "complete_store failed" (it did not), "prepare_load", "complete_load". There is always a free slot.
    Raises AssertionError where the manager does: reading a block that is not there or not ready, and ending a read
    that nobody began.
    """
    if call == "prepare_store":
        return -1 if ref_cnt is None else ref_cnt
    if call == "complete_store":
        return 0 if ref_cnt == -1 else ref_cnt
    if call == "complete_store failed":
        return None if ref_cnt == -1 else ref_cnt
    if call == "prepare_load":
        assert ref_cnt is not None and ref_cnt >= 0
        return ref_cnt + 1
    assert ref_cnt is not None and ref_cnt > 0
    return ref_cnt - 1
