"""The notebooks in a real JupyterLab, seen through a real Chromium."""

import os

import pytest

from lab_session import CHROMIUM, lab
from pipelab.paths import notebooks_dir

# CI installs Chromium and sets this, so that a missing browser cannot pass for a skipped test there.
REQUIRED = os.environ.get("PIPELAB_BROWSER_REQUIRED") == "1"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM and not REQUIRED, reason="no Chromium on this machine: apt install chromium"),
]

# notebook: code cells, titles that its figures must have, bars drawn in all figures
EXPECTED = {
    "00_start_here.ipynb": (["tiny: 133.116 tokens/s", "tiny: 301.784 tokens/s", "my GPUs: 90.064 tokens/s"], 10),
    "01_splitting_layers.ipynb": (
        ["by_flops has a bottleneck 60% above exact's", "H100 and 3 A10: even and proportional and 2 more lose 70%"],
        9,
    ),
    "02_exhaustive_search.ipynb": (["tiny: 301.784 tokens/s", "placements, 3 per stage: beyond a year of search"], 2),
    "03_one_gpu_per_stage.ipynb": (["medium: 264.236 tokens/s", "tiny: even loses 56% against the optimum"], None),
    "04_a_failed_heuristic.ipynb": (
        ["three unlike GPUs: 134.616 tokens/s in 2 stages", "only 23% of the optimum on 2 H100, 6 T4"],
        2,
    ),
    "05_joint_ilp.ipynb": (
        [
            "tiny: 301.784 tokens/s in 1 stage",
            "three unlike GPUs: 48 transfers/s in 3 stages",
            "Slow links make the claim fall to 36% of the truth",
            "small, heavy layers: 215.52 tokens/s",
            "small, heavy layers: 215.52 tokens/s in 4 stages",
            "Connections, not allocations, fill the model: 14,310 for each allocation of demo, 3",
        ],
        9,
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_notebook_runs_and_draws(name):
    titles, bars = EXPECTED[name]
    with lab(notebooks_dir()) as opened:
        opened.open(name)
        counts = opened.run_all()
        assert counts == list(range(1, len(counts) + 1))
        assert opened.bad_outputs() == []
        figures = opened.figures()
        assert len(figures) == len(titles)
        for figure, title in zip(figures, titles, strict=True):
            assert title in figure["title"].replace("\u200b", " ")
            assert figure["bars"] or figure["lines"] or figure["points"] or figure["cells"]
            assert 900 < figure["width"] < 1400  # fills the cell, and no more
        if bars is not None:  # the stages of medium's placement are SCIP's choice among equals
            assert sum(len(figure["bars"]) for figure in figures) == bars
        # The formulas are typeset, not left as dollar signs.
        if "joint" in name:
            assert opened.page.locator("mjx-container").count() > 15
        assert opened.errors == []
        assert opened.requests_elsewhere == set()


def test_a_folded_answer_opens_by_keyboard():
    with lab(notebooks_dir()) as opened:
        opened.open("00_start_here.ipynb")
        opened.run_all()
        answer = opened.page.locator("details:has-text('Predict:')").first
        assert not answer.evaluate("d => d.open")
        answer.locator("summary").focus()
        opened.page.keyboard.press("Enter")
        assert answer.evaluate("d => d.open")
