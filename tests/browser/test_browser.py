"""The notebooks in a real JupyterLab, seen through a real Chromium."""

import os
from dataclasses import replace

import pytest

import pipelab as pl
from lab_session import CHROMIUM
from notebook_results import FIGURES, IN_JUPYTERLAB, check_figure, with_statements
from pipelab.files.bundled_folders import notebooks_dir

# CI installs Chromium and sets this, so that a missing browser cannot pass for a skipped test
# there.
REQUIRED = os.environ.get("PIPELAB_BROWSER_REQUIRED") == "1"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not CHROMIUM and not REQUIRED, reason="no Chromium on this machine: apt install chromium"
    ),
]


# What stands below a chart once work beside the kernel is done.
ENDS_WITH = {
    "00_start_here.ipynb": "1 pipeline, proven",
    "10_from_placement_to_timeline.ipynb": "in flight:",
    # of the mix explorer: until then the chart of the deployment has no bars
    "11_deployments.ipynb": "Best deployment: 4",
}

# On a page of 1000 pixels: tables of facts with many columns.
SCROLLED: dict[str, int] = {}


@pytest.mark.parametrize(
    "name",
    [n if n[:2] in IN_JUPYTERLAB else pytest.param(n, marks=pytest.mark.nightly) for n in FIGURES],
)
def test_a_notebook_runs_and_draws(page, name):
    titles, bars = FIGURES[name]
    page.show(with_statements(notebooks_dir() / name, name))
    counts = page.run_all()
    assert counts == list(range(1, len(counts) + 1))
    assert page.bad_outputs() == []
    if name in ENDS_WITH:
        _wait_for(page.page, ENDS_WITH[name])
        page.page.wait_for_timeout(1000)
    figures = page.figures()
    assert len(figures) == len(titles), [figure["title"] for figure in figures]
    for figure, title in zip(figures, titles, strict=True):
        said = figure["title"].replace("\u200b", "")  # folded where it is long
        assert "".join(title.split()) in "".join(said.split())
        check_figure(figure["title"], figure["axes"], figure["kinds"], figure["annotations"])
        assert figure["bars"] or figure["lines"] or figure["points"] or figure["cells"]
        assert 900 < figure["width"] < 1400  # fills the cell, and no more
    if bars is not None:  # the stages of medium's placement are SCIP's choice among equals
        assert sum(len(figure["bars"]) for figure in figures) == bars
    # The formulas are typeset, not left as dollar signs.
    if "joint" in name:
        assert page.page.locator("mjx-container").count() > 15
    known = SCROLLED.get(name, 0)
    wide = page.too_wide(1000, known)
    assert len(wide) == known, wide
    assert page.errors == []
    assert page.requests_elsewhere == set()


def _wait_for(page, text):
    page.wait_for_function("text => document.body.textContent.includes(text)", arg=text)


def test_the_ledgers_page_is_filtered_without_a_script(page, tmp_path):
    ledger = pl.course.reproduce(["pmetal", "boostr"])
    rows = ledger.data
    ledger = replace(
        ledger, data=rows[(rows["verdict"] != "does not hold") | (rows["document"] != "pmetal")]
    )
    page_file = tmp_path / "ledger.html"
    page_file.write_text(ledger.html(), encoding="utf-8")
    tab = page.page.context.browser.new_context(java_script_enabled=False).new_page()
    tab.goto(page_file.as_uri())
    fails = "does not hold"
    for verdict, document in (("all", "all"), (fails, "all"), (fails, "boostr"), (fails, "pmetal")):
        tab.locator(f"label:text-matches('^{verdict} ')").first.click()
        tab.locator(f"label:text-matches('^{document} ')").last.click()
        chosen = [
            row
            for row in ledger.data.itertuples()
            if verdict in ("all", row.verdict) and document in ("all", row.document)
        ]
        assert tab.locator("tr[class^=v]:visible").count() == len(chosen)
        said = tab.evaluate(
            "getComputedStyle(document.querySelector('caption'), '::after').content"
        )
        assert ("No claim of this document" in said) == (not chosen)
    tab.context.close()
