"""What a trace says about a cache: hits of any policy, the LRU curve over all capacities, the optimum."""

from kvlab.analysis.admission import AdmissionTable, admission_table
from kvlab.analysis.advise import Advice, advise
from kvlab.analysis.by_request import GroupHits, RequestHits, by_session, by_turn, hits_by_request, hits_to_frame
from kvlab.analysis.capacity import CapacityCurve, capacity_curve
from kvlab.analysis.gib import GibRow, gib_to_frame, hits_at_gib
from kvlab.analysis.kv_cost import KVCost, kv_cost
from kvlab.analysis.lifetimes import Lifetimes, lifetimes
from kvlab.analysis.policies import ReplayPolicy, replay_policies
from kvlab.analysis.replay import ORDERS, ReplayResult, compare, replay, to_frame
from kvlab.analysis.unreachable import ReachSample, reach_to_frame, unreachable_over_time

__all__ = [
    "ORDERS",
    "AdmissionTable",
    "Advice",
    "CapacityCurve",
    "GibRow",
    "GroupHits",
    "KVCost",
    "Lifetimes",
    "ReachSample",
    "ReplayPolicy",
    "ReplayResult",
    "RequestHits",
    "admission_table",
    "advise",
    "by_session",
    "by_turn",
    "capacity_curve",
    "compare",
    "gib_to_frame",
    "hits_at_gib",
    "hits_by_request",
    "hits_to_frame",
    "kv_cost",
    "lifetimes",
    "reach_to_frame",
    "replay",
    "replay_policies",
    "to_frame",
    "unreachable_over_time",
]
