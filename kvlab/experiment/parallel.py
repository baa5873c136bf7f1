"""Arms side by side, one process each, with progress and a clean stop.

Notes:
* A process an arm: in one interpreter, each arm's measured scheduler seconds would hold the other's work too.
* Ctrl-C reaches the parent only: it sets the stop event, every arm ends after its step and sends what it has.
* An arm whose process dies or fails costs that arm, not the others.
"""

from __future__ import annotations

import multiprocessing as mp
import signal
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any

from kvlab.config import ConfigError
from kvlab.experiment.arm import ArmSpec, run_arm
from kvlab.policies.other_processes import module_of
from kvlab.results import ArmResult

PROGRESS_INTERVAL_S = 0.25
# A full-scan step can take seconds, and an arm stops between steps only.
STOP_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ArmProgress:
    """Virtual seconds done of all, and tokens so far."""

    name: str
    seconds: float
    max_seconds: float
    tokens: float


@dataclass(slots=True)
class Outcome:
    """`arms` in the order asked for, those that gave nothing left out; `errors`: arm name -> what went wrong."""

    arms: list[ArmResult]
    errors: dict[str, str]
    interrupted: bool = False

    @property
    def partial(self) -> bool:
        return self.interrupted or bool(self.errors) or any(arm.partial for arm in self.arms)


def run_arms(
    specs: Sequence[ArmSpec],
    max_processes: int,
    on_progress: Callable[[ArmProgress], None] = lambda progress: None,
) -> Outcome:
    """Run every arm, at most `max_processes` at a time. KeyboardInterrupt ends the run early, not the call.

    ConfigError, before anything starts, for a policy of one's own that the arms' processes cannot find.
    """
    modules = _policy_modules(specs)
    context = mp.get_context("spawn")
    stop = context.Event()
    waiting = list(specs)
    running: dict[Connection, tuple[ArmSpec, BaseProcess]] = {}
    arms: dict[str, ArmResult] = {}
    errors: dict[str, str] = {}
    interrupted = False
    give_up_at = float("inf")
    try:
        while waiting or running:
            try:
                while waiting and len(running) < max(1, max_processes) and not interrupted:
                    spec = waiting.pop(0)
                    running.update([_start(context, spec, modules[spec.policy], stop)])
                _receive(running, arms, errors, on_progress)
            except KeyboardInterrupt:
                interrupted = True
                stop.set()
                waiting.clear()
                give_up_at = min(give_up_at, monotonic() + STOP_TIMEOUT_S)
            if monotonic() > give_up_at:
                for spec, _ in running.values():
                    errors[spec.name] = f"still in one step {STOP_TIMEOUT_S:.0f} s after the stop: nothing kept"
                break
    finally:
        _end(running.values())
    return Outcome([arms[s.name] for s in specs if s.name in arms], errors, interrupted)


def _policy_modules(specs: Iterable[ArmSpec]) -> dict[str, str | None]:
    """What the process of each policy's arm has to import, see `module_of`."""
    modules: dict[str, str | None] = {}
    for spec in specs:
        try:
            modules[spec.policy] = module_of(spec.policy)
        except ValueError as error:
            raise ConfigError(str(error), key="policies", value=spec.policy) from None
    return modules


def _start(
    context: Any, spec: ArmSpec, module: str | None, stop: Any
) -> tuple[Connection, tuple[ArmSpec, BaseProcess]]:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_arm_process, args=(spec, module, sender, stop), daemon=True, name=f"arm {spec.name}"
    )
    process.start()
    sender.close()
    return receiver, (spec, process)


def _receive(
    running: dict[Connection, tuple[ArmSpec, BaseProcess]],
    arms: dict[str, ArmResult],
    errors: dict[str, str],
    on_progress: Callable[[ArmProgress], None],
) -> None:
    for connection in wait(list(running), timeout=PROGRESS_INTERVAL_S):
        assert isinstance(connection, Connection)
        spec, process = running[connection]
        try:
            message = connection.recv()
        except EOFError:
            process.join()
            errors.setdefault(spec.name, f"its process ended without a result (exit code {process.exitcode})")
            message = None
        if isinstance(message, ArmProgress):
            on_progress(message)
            continue
        if isinstance(message, ArmResult):
            arms[spec.name] = message
            errors.pop(spec.name, None)
        elif isinstance(message, str):
            errors[spec.name] = message
        del running[connection]
        connection.close()
        process.join()


def _end(running: Iterable[tuple[ArmSpec, BaseProcess]]) -> None:
    for _, process in running:
        process.terminate()
    for _, process in running:
        process.join()


def _arm_process(spec: ArmSpec, module: str | None, sender: Connection, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    last = 0.0

    def progress(seconds: float, tokens: float) -> None:
        nonlocal last
        now = monotonic()
        if now - last >= PROGRESS_INTERVAL_S:
            last = now
            sender.send(ArmProgress(spec.name, seconds, spec.workload.max_seconds, tokens))

    try:
        if module is not None:
            import_module(module)
        sender.send(run_arm(spec, progress, stop.is_set))
    except Exception as error:
        sender.send(f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}")
    finally:
        sender.close()
