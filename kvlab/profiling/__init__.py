"""What an eviction and a block's record cost: bytes, nanoseconds with their spread, hits and seconds per line.

kvlab's own; it mirrors no vLLM file. Every measurement is an object that shows itself as a table, in a notebook and as
plain text.
"""

from kvlab.profiling.lines import FunctionLines, Line, LineProfile, profile_lines
from kvlab.profiling.memory import BytesTable, ObjectBytes, bytes_per_object
from kvlab.profiling.states import full_cache, numbered_keys, one_victim
from kvlab.profiling.timing import Timing, TimingTable, ns_per_call, ns_per_operation

__all__ = [
    "BytesTable",
    "FunctionLines",
    "Line",
    "LineProfile",
    "ObjectBytes",
    "Timing",
    "TimingTable",
    "bytes_per_object",
    "full_cache",
    "ns_per_call",
    "ns_per_operation",
    "numbered_keys",
    "one_victim",
    "profile_lines",
]
