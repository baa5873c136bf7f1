"""What an eviction and a block's record cost: bytes, nanoseconds with their spread, hits and seconds per line.

kvlab's own; it mirrors no vLLM file. Every measurement is an object that shows itself as a table, in a notebook and as
plain text.
"""

from kvlab.profiling.hot_spot import CallWork, one_step
from kvlab.profiling.lines import FunctionLines, Line, LineProfile, profile_lines
from kvlab.profiling.memory import BytesTable, ObjectBytes, bytes_per_object
from kvlab.profiling.orders import Call, OrderComparison, OrderStep, compare_orders, shortest_disagreement
from kvlab.profiling.states import full_cache, numbered_keys, storing
from kvlab.profiling.timing import Timing, TimingTable, TurnRatio, ns_per_call, ns_per_operation
from kvlab.profiling.work import EvictionWork, GuardCase, count_upkeep, eviction_work, guard_cases

__all__ = [
    "BytesTable",
    "Call",
    "CallWork",
    "EvictionWork",
    "FunctionLines",
    "GuardCase",
    "Line",
    "LineProfile",
    "ObjectBytes",
    "OrderComparison",
    "OrderStep",
    "Timing",
    "TimingTable",
    "TurnRatio",
    "bytes_per_object",
    "compare_orders",
    "count_upkeep",
    "eviction_work",
    "full_cache",
    "guard_cases",
    "ns_per_call",
    "ns_per_operation",
    "numbered_keys",
    "one_step",
    "profile_lines",
    "shortest_disagreement",
    "storing",
]
