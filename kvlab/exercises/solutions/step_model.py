def step_model(
    tokens: int, evictions: int, pinned_ahead: int, gpu_step_s: float, gpu_rate: float, ns_per_block: float
) -> float:
    """Seconds of one engine step in which nothing overlaps.

    The GPU needs `gpu_step_s` seconds whatever it does, and computes `gpu_rate` tokens/s. Before that the scheduler
    makes room `evictions` times, for one block each (promotions and stores): each time it looks at the `pinned_ahead`
    blocks that are in its way and at the one that it takes, for `ns_per_block` nanoseconds each.
    """
    scheduler_s = evictions * (pinned_ahead + 1) * ns_per_block * 1e-9
    return scheduler_s + gpu_step_s + tokens / gpu_rate
