"""What stands under a figure of a run on the wall clock: its seconds were real, and nothing says otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvlab.cli import main
from kvlab.plots import figures_for, provenance
from kvlab.report import render_report
from kvlab.results import Result, load_result
from tests.results.synthetic import synthetic_result


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run of a few seconds, read back from its file."""
    folder = tmp_path_factory.mktemp("wall")
    command = ["reproduce", "--clock", "wall", "--device", "cpu", "--scale", "tiny", "--minutes", "0.05"]
    assert main([*command, "--root-dir", str(folder / "files"), "--out", str(folder)]) == 0
    (path,) = Path(folder).glob("reproduce-wall-cpu-tiny-*.json")
    return load_result(path)


def below(figure: Any) -> str:
    return " ".join(note.text for note in figure.layout.annotations).replace("<br>", " ")


def test_seconds_that_were_real_are_not_called_modelled(real: Result) -> None:
    said = provenance(real)
    assert "modelled" not in said and "no GPU time played" in said
    write = real.config["at_this_scale"]["wall"]["write_bandwidth"]
    assert f"scheduler, copy and disk seconds real, the disk limited to {write / 1e6:,.3g} MB/s written" in said


@pytest.mark.parametrize("recorded", [False, True])
def test_no_figure_or_page_of_a_real_run_speaks_of_modelled_or_virtual_seconds(real: Result, recorded: bool) -> None:
    figures = figures_for(real, recorded)
    assert figures
    for name, figure in figures.items():
        axes = " ".join(str(axis.title.text) for axis in (*figure.select_xaxes(), *figure.select_yaxes()))
        title = str(figure.layout.title.text)
        for text in (below(figure), axes, title):
            assert "modelled" not in text and "virtual" not in text, (name, text)


def test_the_report_of_a_real_run_counts_wall_seconds(real: Result) -> None:
    page = render_report(real)
    assert "wall seconds in all" in page and "virtual seconds" not in page
    assert "virtual seconds in all" in render_report(synthetic_result())


def test_a_virtual_run_says_what_is_modelled() -> None:
    virtual = synthetic_result()
    clock = virtual.config.get("scheduler_clock", "measured")
    assert f"scheduler seconds {clock}, GPU, disk and copy seconds modelled" in provenance(virtual)


def test_a_run_on_a_gpu_says_that_the_model_gave_the_size_of_its_work(real: Result) -> None:
    scale = real.config["at_this_scale"]
    on_gpu = {**real.config, "at_this_scale": {**scale, "wall": {**scale["wall"], "device": "cuda"}}}
    said = provenance(replace(real, config=on_gpu))
    assert "seconds real" in said and "GPU work sized by the model" in said and "no GPU" not in said


def test_a_wall_result_without_settings_still_says_real() -> None:
    virtual = synthetic_result()
    said = provenance(replace(virtual, config={**virtual.config, "clock": "wall"}))
    assert "scheduler, copy and disk seconds real." in said and "modelled" not in said
