"""The notebooks in a real JupyterLab, seen through a real Chromium."""

import os

import nbformat
import pytest

from lab_session import CHROMIUM, lab
from notebook_results import FIGURES, check_figure, with_statements
from pipelab.paths import notebooks_dir

# CI installs Chromium and sets this, so that a missing browser cannot pass for a skipped test there.
REQUIRED = os.environ.get("PIPELAB_BROWSER_REQUIRED") == "1"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM and not REQUIRED, reason="no Chromium on this machine: apt install chromium"),
]


# What stands below a chart once work beside the kernel is done.
ENDS_WITH = {"05_joint_ilp.ipynb": "ended after", "08_from_placement_to_timeline.ipynb": "in flight:"}

# On a page of 1000 pixels: tables of formulas, which break nowhere (03, 05), and of facts with many columns (08).
SCROLLED = {"03_one_gpu_per_stage.ipynb": 1, "05_joint_ilp.ipynb": 1, "08_from_placement_to_timeline.ipynb": 2}


@pytest.mark.parametrize("name", FIGURES)
def test_a_notebook_runs_and_draws(jupyterlab, tmp_path, name):
    titles, bars = FIGURES[name]
    notebook = with_statements(notebooks_dir() / name, name)
    nbformat.write(notebook, tmp_path / name)
    with lab(jupyterlab, tmp_path) as opened:
        opened.open(name)
        counts = opened.run_all()
        assert counts == list(range(1, len(counts) + 1))
        assert opened.bad_outputs() == []
        if name in ENDS_WITH:
            _wait_for(opened.page, ENDS_WITH[name])
            opened.page.wait_for_timeout(1000)
        figures = opened.figures()
        assert len(figures) == len(titles), [figure["title"] for figure in figures]
        for figure, title in zip(figures, titles, strict=True):
            assert title in figure["title"].replace("\u200b", " ")
            check_figure(figure["title"], figure["axes"], figure["kinds"], figure["annotations"])
            assert figure["bars"] or figure["lines"] or figure["points"] or figure["cells"]
            assert 900 < figure["width"] < 1400  # fills the cell, and no more
        if bars is not None:  # the stages of medium's placement are SCIP's choice among equals
            assert sum(len(figure["bars"]) for figure in figures) == bars
        # The formulas are typeset, not left as dollar signs.
        if "joint" in name:
            assert opened.page.locator("mjx-container").count() > 15
        known = SCROLLED.get(name, 0)
        wide = opened.too_wide(1000, known)
        assert len(wide) == known, wide
        assert opened.errors == []
        assert opened.requests_elsewhere == set()


def _wait_for(page, text):
    page.wait_for_function("text => document.body.textContent.includes(text)", arg=text)


def test_the_ledgers_page_is_filtered_without_a_script(tmp_path):
    from playwright.sync_api import sync_playwright

    import pipelab as pl

    ledger = pl.reproduce(["pmetal", "boostr"])
    page_file = tmp_path / "ledger.html"
    page_file.write_text(ledger.html(), encoding="utf-8")
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(java_script_enabled=False).new_page()
        page.goto(page_file.as_uri())
        rows = page.locator("tr[class^=v]:visible")
        assert rows.count() == len(ledger)
        page.locator("label:has-text('wrong (')").click()
        assert rows.count() == len(ledger.only("wrong"))
        page.locator("label:has-text('boostr (')").click()
        assert rows.count() == len(ledger.only("wrong", "boostr"))
        browser.close()
