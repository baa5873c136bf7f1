"""What an engine is told and what it counts."""

from __future__ import annotations

from dataclasses import dataclass


class NoProgressError(RuntimeError):
    """Nothing moved for `no_progress_steps` steps and nothing is on its way. The message says who holds what."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Budgets in tokens and requests, times in seconds, `gpu_rate` in computed tokens/s (cached tokens cost none)."""

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    gpu_step_s: float = 0.020
    gpu_rate: float = 10_000.0
    idle_step_s: float = 0.001
    no_progress_steps: int = 1000

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "no_progress_steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"engine {name}={getattr(self, name)!r}: must be a whole number, at least 1")
        for name in ("gpu_step_s", "gpu_rate", "idle_step_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"engine {name}={getattr(self, name)!r}: must be a number above 0")


@dataclass(slots=True)
class EngineStats:
    """Tokens are counted when processed: a prompt (its cached part included) when its prefill ends, an answer token
    when emitted. Seconds are the clock's: virtual or real."""

    steps: int = 0
    idle_steps: int = 0
    started_requests: int = 0
    completed_requests: int = 0
    aborted_requests: int = 0
    preemptions: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    completed_input_tokens: int = 0
    completed_output_tokens: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    recomputed_after_failure: int = 0
    gpu_step_seconds: float = 0.0
    gpu_compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    idle_seconds: float = 0.0
    max_running: int = 0


@dataclass(slots=True)
class CompletedRequest:
    """One line of the per-request record. Of the prompt `cached_tokens` were loaded, `gpu_cached_tokens` found on the
    GPU, the rest computed; as it was when the first token came, whatever a later preemption did."""

    turn: int
    arrival_s: float
    first_token_s: float
    finished_s: float
    num_prompt_tokens: int
    cached_tokens: int
    gpu_cached_tokens: int = 0
    request_id: str = ""
