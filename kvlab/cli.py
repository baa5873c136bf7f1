"""The command line. Each subcommand imports what it needs when it runs, so `kvlab --help` is instant.

Exit codes: 0; 2 for wrong input (one message, no traceback); 1 for a run that failed; 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kvlab
from kvlab.arguments import Parser, bandwidth, in_file, out_file, out_folder, positive
from kvlab.checks import os_error_text

if TYPE_CHECKING:
    from rich.console import Console

SCALES = ("tiny", "laptop", "paper")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="kvlab", description=kvlab.__doc__)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_reproduce(commands)
    explain = commands.add_parser("explain", help="every setting of the two commands: value, source, meaning, effect")
    explain.add_argument("path", nargs="?", help="folder or file (default: the pull request's own commands)")
    explain.add_argument("--layout", default="gemma-like", help="KV layout: a name in data/kv_layouts, or a JSON file")
    explain.add_argument(
        "--policy", metavar="NAME", help="show how to load this one into vLLM (default: the policy that is configured)"
    )
    explain.add_argument("--json", action="store_true", help="print JSON instead of the table")
    show = commands.add_parser("show", help="print a saved Result again")
    show.add_argument("result", type=in_file, help="a Result file (JSON)")
    show.add_argument("--html", metavar="FILE", type=out_file, help="write the HTML report to FILE as well")
    commands.add_parser("doctor", help="check this machine and installation, a line a check")
    grade = commands.add_parser("grade", help="grade handed-in notebooks: a table, CSV, HTML")
    grade.add_argument("path", nargs="+", metavar="PATH", help="notebooks, or folders of them")
    grade.add_argument("--csv", metavar="FILE", type=out_file, help="write the table as CSV")
    grade.add_argument("--html", metavar="FILE", type=out_file, help="write the table as a page")
    grade.add_argument("--seconds", type=positive, default=30.0, help="of processor time, for one cell (default: 30)")
    grade.add_argument("--memory-mib", type=int, default=1024, help="for one cell, not on Windows (default: 1024)")
    calibrate = commands.add_parser("calibrate", help="find the GPU rate on the evictable-list arm (minutes)")
    calibrate.add_argument("--scale", choices=SCALES, default="paper")
    calibrate.add_argument("--low", type=positive, default=8000.0, help="computed tokens/s at paper scale")
    calibrate.add_argument("--high", type=positive, default=16000.0)
    calibrate.add_argument(
        "--scheduler-clock",
        choices=("measured", "counted"),
        default="counted",
        help="default: counted, so that a trial can be repeated exactly",
    )
    calibrate.add_argument("--out", metavar="FILE", type=out_file, required=True, help="where the JSON record goes")
    _add_traces(commands)
    _add_sweep(commands)
    gpu = commands.add_parser("gpu", help="everything that needs a GPU: copies, both arms, ablation (8 minutes)")
    gpu.add_argument("--out", metavar="DIR", type=out_folder, help="where the results go (default: data/recorded)")
    gpu.add_argument("--root-dir", metavar="DIR", type=out_folder, help="where scratch files go (default: temporary)")
    commands.add_parser("version", help="print the version")
    return parser


def _add_reproduce(commands: argparse._SubParsersAction[Parser]) -> None:
    run = commands.add_parser("reproduce", help="run the pull request's benchmark with each policy")
    run.add_argument("dir", nargs="?", metavar="DIR", help="folder with the two commands (default: data/pr46216)")
    run.add_argument(
        "--scale", choices=SCALES, help="how much is divided away (default: laptop; wall clock: tiny, paper on CUDA)"
    )
    run.add_argument("--clock", choices=("virtual", "wall"), default="virtual", help="wall: real copies, real files")
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), help="for --clock wall (default: auto)")
    run.add_argument("--minutes", type=positive, help="for --clock wall: all arms together (default: 0.5, 5 on CUDA)")
    run.add_argument(
        "--root-dir", metavar="DIR", type=out_folder, help="for --clock wall: of scratch files (default: temporary)"
    )
    run.add_argument("--policies", nargs="+", metavar="NAME", help="default: full_scan_lru evictable_list_lru")
    run.add_argument("--guard", action=argparse.BooleanOptionalAction, default=None, help="PR 45757 (default: on)")
    run.add_argument("--block-status", nargs="+", metavar="NAME", choices=("ctypes", "plain", "slots", "dataclass"))
    run.add_argument("--layout", default=None, help="KV layout: a name in data/kv_layouts, or a JSON file")
    kinds = run.add_mutually_exclusive_group()
    kinds.add_argument("--ablation", action="store_true", help="guard x policy x block status")
    kinds.add_argument(
        "--sweep-disk", action="store_true", help="write bandwidths from 0.5 to 16 GB/s, read twice that"
    )
    kinds.add_argument("--sweep-gpu-rate", action="store_true", help="half to twice the calibrated GPU rate")
    run.add_argument("--disk-write", type=bandwidth, metavar="B/S", help="bytes/s at paper scale, as 3GB/s or 3e9")
    run.add_argument("--disk-read", type=bandwidth, metavar="B/S")
    run.add_argument(
        "--storage", metavar="NAME", help="nvme, sata, shared, or a JSON file: rates, latency, jobs at once"
    )
    run.add_argument("--gpu-rate", type=positive, metavar="TOK/S", help="computed tokens/s at paper scale")
    run.add_argument("--scheduler-clock", choices=("measured", "counted"), default="measured")
    run.add_argument("--seed", type=int, help="default: the benchmark's own")
    run.add_argument("--seconds", type=positive, help="virtual seconds an arm (default: the benchmark's, scaled)")
    run.add_argument("--out", metavar="DIR", type=out_folder, help="where Result and report go (default: data/runs)")
    run.add_argument("--json", action="store_true", help="print the Result instead of the tables")


def _add_traces(commands: argparse._SubParsersAction[Parser]) -> None:
    replay = commands.add_parser(
        "replay", help="a trace's block hits for any policy and capacity, or the whole server on it"
    )
    replay.add_argument("--policies", nargs="+", metavar="NAME", help="default: the textbook policies and vLLM's")
    replay.add_argument("--capacities", nargs="+", type=int, metavar="BLOCKS", help="default: 1000 5000 10000")
    replay.add_argument("--order", help="flat, prefix or prefix-protected (default: flat)")
    replay.add_argument(
        "--curve", action="store_true", help="LRU at all capacities as well (flat and prefix; needs numpy)"
    )
    _add_full_replay(replay)
    advise = commands.add_parser("advise", help="how big the tiers must be for a trace, and a configuration")
    _add_advise(advise)
    trace = commands.add_parser("trace", help="what a trace file is and holds, and what is odd in it")
    trace.add_argument("--to", metavar="FILE", type=out_file, help="write it as Mooncake JSONL (.gz and .zst compress)")
    for command in (replay, advise, trace):
        command.add_argument("trace", metavar="TRACE", help="a trace file (plain, .gz, .zst) or a folder of sessions")
        command.add_argument("--format", metavar="NAME", help="default: told by the first line")
        command.add_argument("--skip-bad", action="store_true", help="leave out records that cannot be read")
        command.add_argument("--full-blocks", action="store_true", help="drop the id of a last, partly filled block")
        command.add_argument(
            "--block-tokens", type=int, metavar="N", help="tokens a block, where the trace does not tell"
        )
        command.add_argument("--progress", action="store_true", help="a progress bar (needs tqdm)")
        command.add_argument("--json", action="store_true", help="print JSON instead of the table")


def _add_full_replay(replay: Parser) -> None:
    full = replay.add_argument_group("with --full", "the pull request's server, unless given otherwise")
    full.add_argument("--full", action="store_true", help="serve the requests: GPU blocks, CPU tier, disk, pins, clock")
    full.add_argument("--concurrency", type=int, metavar="N", help="requests in flight (default: by the trace's times)")
    full.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
    full.add_argument("--layout", help="KV layout: a name in data/kv_layouts, or a JSON file (default: gemma-like)")
    full.add_argument("--block-size", type=int, metavar="TOKENS", help="of the server's blocks (default: the layout's)")
    full.add_argument("--cpu-bytes", metavar="SIZE", help="CPU tier, as 100GiB (default: cpu_bytes_to_use)")
    full.add_argument("--gpu-blocks", type=int, metavar="N", help="in blocks of that size")
    full.add_argument("--no-disk", action="store_true", help="nothing below the CPU tier")
    full.add_argument("--prefix-caching", action=argparse.BooleanOptionalAction, default=None, help="on the GPU")
    full.add_argument("--disk-write", type=bandwidth, metavar="B/S", help="as 3GB/s or 3e9")
    full.add_argument("--disk-read", type=bandwidth, metavar="B/S")
    full.add_argument("--storage", metavar="NAME", help="nvme, sata, shared, or a JSON file")
    full.add_argument("--gpu-rate", type=positive, metavar="TOK/S", help="computed tokens/s")
    full.add_argument("--scheduler-clock", choices=("measured", "counted"), help="default: counted")
    full.add_argument("--max-deferred-walks", type=int, metavar="N", help="give up waiting for the disk after N steps")
    full.add_argument("--out", metavar="FILE", type=out_file, help="write the result as JSON")
    full.add_argument("--to", metavar="FILE", type=out_file, help="write the requests sent as Mooncake JSONL")


def _add_sweep(commands: argparse._SubParsersAction[Parser]) -> None:
    run = commands.add_parser("sweep", help="the benchmark, or a trace, at every combination of values; can be resumed")
    run.add_argument("dir", nargs="?", metavar="DIR", help="folder with the two commands (default: data/pr46216)")
    run.add_argument("--policies", nargs="+", metavar="NAME", help="default: both LRUs; with --trace every policy")
    run.add_argument("--scale", choices=SCALES, help="default: tiny")
    run.add_argument("--seeds", nargs="+", type=int, metavar="N")
    run.add_argument("--disk-write", nargs="+", type=bandwidth, metavar="B/S", help="bytes/s at paper scale")
    run.add_argument("--disk-read", nargs="+", type=bandwidth, metavar="B/S")
    run.add_argument("--gpu-rate", nargs="+", type=positive, metavar="TOK/S", help="at paper scale")
    run.add_argument("--layout", help="KV layout: a name in data/kv_layouts, or a JSON file")
    run.add_argument("--seconds", type=positive, help="virtual seconds an arm")
    run.add_argument("--scheduler-clock", choices=("measured", "counted"), help="default: counted")
    run.add_argument("--trace", metavar="TRACE", help="replay this trace instead")
    run.add_argument("--capacities", nargs="+", type=int, metavar="BLOCKS", help="default: 1000 5000 10000")
    run.add_argument("--order", help="flat, prefix or prefix-protected (default: flat)")
    run.add_argument("--workers", type=int, metavar="N", help="processes (default: one a core)")
    run.add_argument("--dask", metavar="ADDRESS", help="a Dask scheduler: run on its workers instead")
    run.add_argument("--out", metavar="FILE", type=out_file, help="JSON lines; a rerun resumes from it")
    run.add_argument("--json", action="store_true", help="print JSON instead of the table")


def _add_advise(advise: argparse.ArgumentParser) -> None:
    advise.add_argument("--layout", required=True, help="KV layout: a name in data/kv_layouts, or a JSON file")
    advise.add_argument("--gpu-rate", type=positive, metavar="TOK/S", required=True, help="computed tokens/s")
    advise.add_argument("--disk-write", type=bandwidth, metavar="B/S", required=True, help="as 3GB/s or 3e9")
    advise.add_argument("--disk-read", type=bandwidth, metavar="B/S", required=True)
    advise.add_argument("--gpu-blocks", type=int, metavar="N", default=0, help="GPU prefix cache (default: none)")
    advise.add_argument("--cpu-bytes", metavar="SIZE", help="judge this size, as 400GiB (default: find the smallest)")
    advise.add_argument("--within", type=float, metavar="PERCENT", default=5.0, help="of the best hits (default: 5)")
    advise.add_argument("--tbw", type=positive, metavar="TB", help="terabytes written that the drive is rated for")
    advise.add_argument("--world-size", type=int, metavar="N", default=1, help="tensor-parallel workers (default: 1)")
    advise.add_argument("--model", default="MODEL", help="for the command line that comes out")
    advise.add_argument("--root-dir", metavar="DIR", default="/mnt/nvme", help="of the disk tier, in the same")
    advise.add_argument("--html", metavar="FILE", type=out_file, help="write a page with the figures as well")


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    from rich.console import Console

    # So that a policy named module:Class is found in the current folder, however kvlab was started.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return _COMMANDS[args.command](args, Console())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except (ValueError, OSError) as error:
        if args.debug:
            raise
        text = os_error_text(error) if isinstance(error, OSError) else str(error)
        print(f"kvlab {args.command}: {text}", file=sys.stderr)
        return 2
    except ImportError as error:
        if args.debug:
            raise
        print(f"kvlab {args.command}: {_missing(error)}", file=sys.stderr)
        return 2
    except Exception as error:
        if args.debug:
            raise
        print(
            f"kvlab {args.command}: {type(error).__name__}: {error}\nThis is a fault in kvlab, not in your input: "
            f"kvlab --debug {args.command} ... shows where",
            file=sys.stderr,
        )
        return 1


def _missing(error: ImportError) -> str:
    """Which package is missing, and what brings it."""
    if "pip install" in str(error):
        return str(error)
    extra = {"jinja2": "report", "plotly": "report", "distributed": "cluster"}.get(error.name or "")
    remedy = f": pip install 'kvlab[{extra}]'" if extra else "; see `kvlab doctor`"
    return f"{error.name} is not installed{remedy}"


def _reproduce(args: argparse.Namespace, console: Console) -> int:
    from kvlab.experiment.main import main as run

    try:
        from kvlab.report import save_report
    except ImportError as error:
        print(f"no HTML report: {error.name} is not installed (pip install 'kvlab[report]')", file=sys.stderr)
        return run(args, console)
    return run(args, console, save_report)


def _explain(args: argparse.Namespace, console: Console) -> int:
    import json

    from kvlab.explain import explain, render
    from kvlab.paths import default_input_dir

    explanation = explain(args.path or default_input_dir(), layout=args.layout, policy=args.policy)
    if args.json:
        print(json.dumps(explanation.to_dict(), indent=2))
    else:
        render(explanation, console)
    return 0


def _show(args: argparse.Namespace, console: Console) -> int:
    from kvlab.experiment.beside import recorded_beside
    from kvlab.experiment.show import print_result
    from kvlab.results import load_result

    result = load_result(args.result)
    beside = recorded_beside(result)
    print_result(result, console, beside)
    if args.html:
        from kvlab.report import save_report

        console.print(f"\nReport: {save_report(result, args.html, beside)}", highlight=False, soft_wrap=True)
    return 0


def _doctor(args: argparse.Namespace, console: Console) -> int:
    from kvlab.doctor import run_doctor

    return run_doctor(console)


def _grade(args: argparse.Namespace, console: Console) -> int:
    from kvlab.grading.main import main as run

    return run(args, console)


def _calibrate(args: argparse.Namespace, console: Console) -> int:
    from kvlab.experiment.main import calibrate_and_save

    return calibrate_and_save(args, console)


def _replay(args: argparse.Namespace, console: Console) -> int:
    from kvlab.analysis.main import main as run
    from kvlab.experiment.full_replay_main import main as run_full
    from kvlab.experiment.full_replay_main import refuse_mixed

    refuse_mixed(args)
    if args.full:
        return run_full(args, console)
    args.order = args.order or "flat"
    return run(args, console)


def _trace(args: argparse.Namespace, console: Console) -> int:
    from kvlab.traces.main import main as run

    return run(args, console)


def _sweep(args: argparse.Namespace, console: Console) -> int:
    from kvlab.experiment.sweep_main import main as run

    return run(args, console)


def _advise(args: argparse.Namespace, console: Console) -> int:
    from kvlab.analysis.advise_main import main as run

    def save(advice: Any, path: Path) -> Path:
        from kvlab.advice_report import save_advice

        return save_advice(advice, path)

    return run(args, console, save)


def _gpu(args: argparse.Namespace, console: Console) -> int:
    from kvlab.experiment.gpu import main as run

    return run(args, console)


def _version(args: argparse.Namespace, console: Console) -> int:
    print(kvlab.__version__)
    return 0


_COMMANDS: dict[str, Callable[[argparse.Namespace, Console], int]] = {
    "reproduce": _reproduce,
    "explain": _explain,
    "show": _show,
    "doctor": _doctor,
    "calibrate": _calibrate,
    "grade": _grade,
    "replay": _replay,
    "advise": _advise,
    "trace": _trace,
    "sweep": _sweep,
    "gpu": _gpu,
    "version": _version,
}
