"""The experiment: arms of the pull request's benchmark, run and compared."""

from kvlab.experiment.arm import ArmSpec, GroupSpec, TierSpec, build_engine, run_arm
from kvlab.experiment.calibrate import Calibration, calibrate
from kvlab.experiment.config import SCALES, Experiment, ExperimentConfig, resolve
from kvlab.experiment.full_replay import export_sent, full_replay
from kvlab.experiment.full_replay_config import ReplayConfig, ReplayServer, resolve_server
from kvlab.experiment.full_replay_result import FullReplay
from kvlab.experiment.parallel import ArmProgress, Outcome, run_arms
from kvlab.experiment.sweep import Sweep, grid, sweep

__all__ = [
    "SCALES",
    "ArmProgress",
    "ArmSpec",
    "Calibration",
    "Experiment",
    "ExperimentConfig",
    "FullReplay",
    "GroupSpec",
    "Outcome",
    "ReplayConfig",
    "ReplayServer",
    "Sweep",
    "TierSpec",
    "build_engine",
    "calibrate",
    "export_sent",
    "full_replay",
    "grid",
    "resolve",
    "resolve_server",
    "run_arm",
    "run_arms",
    "sweep",
]
