"""What a trace says about a cache: hits of any policy, the LRU curve over all capacities, the optimum."""

from kvlab.analysis.admission import AdmissionTable, admission_table
from kvlab.analysis.advise import Advice, advise
from kvlab.analysis.capacity import CapacityCurve, capacity_curve
from kvlab.analysis.policies import ReplayPolicy, replay_policies
from kvlab.analysis.replay import ORDERS, ReplayResult, compare, replay, to_frame

__all__ = [
    "ORDERS",
    "AdmissionTable",
    "Advice",
    "CapacityCurve",
    "ReplayPolicy",
    "ReplayResult",
    "admission_table",
    "advise",
    "capacity_curve",
    "compare",
    "replay",
    "replay_policies",
    "to_frame",
]
