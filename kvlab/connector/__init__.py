"""The offloading connector, scheduler side: lookup walk, store jobs, completions counted over the workers."""

from kvlab.connector.job_table import COMPLETION_ORDERS, CompletionOrder
from kvlab.connector.jobs import (
    NULL_BLOCK_ID,
    SECONDS_KINDS,
    ConnectorStats,
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    SchedulerOutput,
    TransferJob,
    TransferJobStatus,
)
from kvlab.connector.lookup import maximal_prefix_lookup, sliding_window_lookup
from kvlab.connector.options import ConnectorOptions
from kvlab.connector.reach import PrefixReach, prefix_reach, resident, unreachable_keys
from kvlab.connector.scheduler import OffloadingConnector
from kvlab.connector.state import ConnectorRequest, KVGroup

__all__ = [
    "COMPLETION_ORDERS",
    "NULL_BLOCK_ID",
    "SECONDS_KINDS",
    "CompletionOrder",
    "ConnectorOptions",
    "ConnectorRequest",
    "ConnectorStats",
    "KVGroup",
    "OffloadingConnector",
    "OffloadingConnectorMetadata",
    "OffloadingWorkerMetadata",
    "PrefixReach",
    "SchedulerOutput",
    "TransferJob",
    "TransferJobStatus",
    "maximal_prefix_lookup",
    "prefix_reach",
    "resident",
    "sliding_window_lookup",
    "unreachable_keys",
]
