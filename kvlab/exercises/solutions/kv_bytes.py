def kv_bytes(
    block_tokens: int, num_layers: int, num_kv_heads: int, head_size: int, dtype_bytes: int, workers: int = 1
) -> int:
    """Bytes of one offloaded block over all tensor-parallel workers together.

    Per token, layer and KV head there is one key and one value, each `head_size` numbers of `dtype_bytes` bytes.
    The heads are spread over the workers. A worker has at least one head: fewer heads than workers are copied.
    """
    heads_per_worker = max(1, num_kv_heads // workers)
    return 2 * block_tokens * num_layers * heads_per_worker * head_size * dtype_bytes * workers
