"""A reader's first minutes: JupyterLab in a real Chromium, run all, and the controls by keyboard alone.

Skipped where playwright or a Chromium is missing; `make browser` sets both up. Screenshots stay in build/browser of
the clone.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvlab.lab.files import notebooks_dir
from kvlab.paths import repo_dir

sys.path.insert(0, str(Path(__file__).parent))
from jupyter import Lab, running_lab

CHROMIUM = os.environ.get("BROWSER_PATH") or next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.notebooks,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="needs playwright: kvlab[docs]"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium (or BROWSER_PATH)"),
]
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
OPTIONS += ["--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]
READY = "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
RUN_ALL = "() => window.jupyterapp.commands.execute('notebook:run-all-cells')"
PLAYED = "document.querySelector('.jp-OutputArea:has(.widget-play) .js-plotly-plot')"
# Of the server, not of a notebook: files that JupyterLab asks for and does not need.
NOISE = ("favicon", "/static/lab", "third-party cookie", "Deprecat")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab(notebooks_dir(), tmp_path_factory.mktemp("jupyter")) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=OPTIONS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1400, "height": 1100})
    opened.set_default_timeout(120_000)
    opened.errors = []
    opened.on("console", lambda message: opened.errors.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.strangers = []
    opened.on("request", lambda request: opened.strangers.append(request.url) if _outside(request.url) else None)
    yield opened
    opened.close()


def _outside(url: str) -> bool:
    return url.startswith("http") and "127.0.0.1" not in url


def open_and_run(page: Any, lab: Lab, notebook: str) -> None:
    page.goto(lab.url(notebook))
    page.wait_for_selector(".jp-NotebookPanel .jp-Notebook")
    page.wait_for_function(READY)
    page.evaluate(RUN_ALL)
    page.wait_for_selector(".js-plotly-plot")


def screenshot(page: Any, name: str) -> None:
    root = repo_dir()
    assert root is not None
    folder = root / "build" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png")


def no_complaints(page: Any) -> None:
    assert [error for error in page.errors if not any(noise in error for noise in NOISE)] == []
    assert page.strangers == [], "a notebook asks for something outside this machine"
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']").count() == 0


def test_a_slider_redraws_the_capacity(page: Any, lab: Lab) -> None:
    """01: three arrow keys on "CPU tier" and the title is another one; the widget's error line stays empty."""
    open_and_run(page, lab, "01_what_a_kv_block_weighs.ipynb")
    assert page.locator(".gtitle", has_text="400 GiB hold 204,800").count() == 1
    handle = page.locator(".jupyter-widgets [role=slider]").first
    handle.scroll_into_view_if_needed()
    handle.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".gtitle:has-text('800 GiB hold 409,600')")
    screenshot(page, "01-capacity")
    no_complaints(page)


@pytest.mark.parametrize("notebook", ["04_the_evictable_list.ipynb", "07_from_microseconds_to_6x.ipynb"])
def test_slider_and_play_by_keyboard(page: Any, lab: Lab, notebook: str) -> None:
    """04's strip, 07's steps: arrow keys on the slider change the figure, Enter on the play button starts the film."""
    open_and_run(page, lab, notebook)
    page.wait_for_selector(".jupyter-widgets.widget-play")
    handle = page.locator(".jp-OutputArea:has(.widget-play) [role=slider]").first
    handle.scroll_into_view_if_needed()
    handle.focus()
    untouched = figure_text(page, None)
    page.keyboard.press("Home")
    first = figure_text(page, untouched)
    page.keyboard.press("ArrowRight")
    stepped = figure_text(page, first)
    screenshot(page, f"{notebook[:2]}-stepped")
    page.locator(".widget-play button").first.focus()
    page.keyboard.press("Enter")
    figure_text(page, stepped)
    screenshot(page, f"{notebook[:2]}-played")
    no_complaints(page)


def figure_text(page: Any, other_than: str | None) -> str:
    """All text of the figure under the play button, once it is there and is another one than before."""
    page.wait_for_function("t => ![undefined, t].includes(" + PLAYED + "?.textContent)", arg=other_than)
    text: str = page.evaluate("() => " + PLAYED + ".textContent")
    return text


def test_07_overtakes_by_keyboard(page: Any, lab: Lab) -> None:
    """07: two arrow keys to the left, from 64 evictions a step to 1, and the GPU is the slower one at every size."""
    open_and_run(page, lab, "07_from_microseconds_to_6x.ipynb")
    page.wait_for_selector(".gtitle:has-text('64 evictions a step: from about')")
    handle = page.locator(".jupyter-widgets:has-text('evictions a step') [role=slider]").first
    handle.scroll_into_view_if_needed()
    handle.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(".gtitle:has-text('1 eviction a step')")
    screenshot(page, "07-one-eviction")
    no_complaints(page)


def test_the_glossary_opens_as_a_page(page: Any, lab: Lab) -> None:
    """00: the link in its head shows the glossary's table, not its markdown."""
    page.goto(lab.url("00_start_here.ipynb"))
    page.locator(".jp-Notebook a", has_text="glossary").first.click()
    page.wait_for_selector(".jp-MarkdownViewer table")
    assert page.locator("text=Jupyter news").count() == 0
    screenshot(page, "00-glossary")
    no_complaints(page)


def test_the_strips_own_slider_and_button(page: Any, lab: Lab) -> None:
    """02: plotly's play button moves the frames, with the mouse and without any kernel."""
    open_and_run(page, lab, "02_the_life_of_a_block.ipynb")
    strip = page.locator(".js-plotly-plot", has_text="blocks inspected").first
    strip.scroll_into_view_if_needed()
    before = strip.text_content()
    strip.locator(".updatemenu-button", has_text="play").click()
    page.wait_for_timeout(1_500)
    assert strip.text_content() != before
    screenshot(page, "02-playing")
    no_complaints(page)
