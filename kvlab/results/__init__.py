"""`Result`: the seam between what runs an experiment and what reads one.

What produces a Result may need a GPU or minutes; tables, figures, report and notebooks need only the file.
"""

from kvlab.results.beside import (
    QUIET_SHARE,
    Beside,
    beside_notes,
    beside_table,
    run_length_table,
    same_experiment,
    trust_line,
)
from kvlab.results.checks import ResultError
from kvlab.results.compare import (
    METRICS,
    Ratio,
    common_stretch_ratio,
    cumulative_ratio,
    main_pair,
    phase_ratios,
    published_ratios,
    ratio,
    value_at,
)
from kvlab.results.environment import collect_environment, utc_now
from kvlab.results.files import load_result, result_from_json, result_to_json, save_result, write_atomic
from kvlab.results.html import assumed_lines, assumed_rows, ratio_lines
from kvlab.results.model import (
    CALL_KINDS,
    KINDS,
    MARKS,
    OF_WHICH,
    SCHEMA_VERSION,
    SERIES,
    STEP_KINDS,
    ArmResult,
    Result,
    histogram_percentile,
)
from kvlab.results.published import load_published
from kvlab.results.table import Table, derived_table, guidellm_table, machine_line

__all__ = [
    "CALL_KINDS",
    "KINDS",
    "MARKS",
    "METRICS",
    "OF_WHICH",
    "QUIET_SHARE",
    "SCHEMA_VERSION",
    "SERIES",
    "STEP_KINDS",
    "ArmResult",
    "Beside",
    "Ratio",
    "Result",
    "ResultError",
    "Table",
    "assumed_lines",
    "assumed_rows",
    "beside_notes",
    "beside_table",
    "collect_environment",
    "common_stretch_ratio",
    "cumulative_ratio",
    "derived_table",
    "guidellm_table",
    "histogram_percentile",
    "load_published",
    "load_result",
    "machine_line",
    "main_pair",
    "phase_ratios",
    "published_ratios",
    "ratio",
    "ratio_lines",
    "result_from_json",
    "result_to_json",
    "run_length_table",
    "same_experiment",
    "save_result",
    "trust_line",
    "utc_now",
    "value_at",
    "write_atomic",
]
