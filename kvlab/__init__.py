"""kvlab: see, measure, reproduce and change how a KV-cache offload tier picks the block to evict.

The subject is vLLM PR #46216. `import kvlab` brings in the standard library only.
"""

__version__ = "0.1.0"
