def num_blocks(cpu_bytes_to_use: int, bytes_per_worker: int, workers: int = 1, row_alignment: int = 1) -> int:
    """How many blocks fit into `cpu_bytes_to_use` bytes of CPU memory.

    One block is one row: the parts of all `workers`, `bytes_per_worker` each, side by side, and then padding up to a
    multiple of `row_alignment` bytes (4,096 where blocks also go to disk). Only whole rows count.
    """
    row = bytes_per_worker * workers
    row += -row % row_alignment
    return cpu_bytes_to_use // row
