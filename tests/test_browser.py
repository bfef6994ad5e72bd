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
    "00_start_here.ipynb": (
        [
            "tiny: 133.116 tokens/s",
            "tiny: 301.784 tokens/s",
            "tiny, 4 GPUs: 301.784 tokens/s in 1 stage, proven optimal",
            "proportional comes nearest and loses 56% against the optimum",
            "10 notebooks: 4.8 hours for the learner",
            "my GPUs: 90.064 tokens/s",
        ],
        None,
    ),
    "01_splitting_layers.ipynb": (
        [
            "by_flops has a bottleneck 60% above exact's",
            "All splits have the same bottleneck",
            "H100 and 3 A10: even and proportional and 2 more lose 70%",
        ],
        15,
    ),
    "02_exhaustive_search.ipynb": (["tiny: 301.784 tokens/s", "placements, 3 per stage: beyond a year of search"], 2),
    "03_one_gpu_per_stage.ipynb": (
        [
            "medium: 264.236 tokens/s",
            "layers of 14 GB: 219.52 tokens/s in 3 stages",
            "medium_small, 8 GPUs: 249.52 tokens/s in 1 stage, proven optimal",
            "by_flops comes nearest and loses 63%",
            "tiny: even loses 56% against the optimum",
        ],
        None,
    ),
    "04_a_failed_heuristic.ipynb": (
        ["three unlike GPUs: 134.616 tokens/s in 2 stages", "only 23% of the optimum on 2 H100, 6 T4"],
        2,
    ),
    "06_taming_the_explosion.ipynb": (
        [
            "10 GPUs are 4 classes of interchangeable ones",
            "medium: 11 questions settle 90 possible rates",
            "medium: 287.04 tokens/s in 8 stages",
            "At 271.04 tokens/s all GPUs are worth 45 layers: 35 layers short",
            "your mix: 196.452 tokens/s in 5 stages",
            "medium, 65 GPUs: 287.04 tokens/s in 8 stages, proven optimal",
            "No rule of thumb finds a placement that fits",
            "medium: 443.5 tokens/s at most",
            "demo: 1047 tokens/s at most",
            "demo, heavy ends:",
            "63 problems, the slowest solved in",
            "36 problems, the slowest solved in",
        ],
        None,
    ),
    "05_joint_ilp.ipynb": (
        [
            "tiny: 301.784 tokens/s in 1 stage",
            "three unlike GPUs: 48 transfers/s in 3 stages",
            "Slow links make the claim fall to 36% of the truth",
            "small, heavy layers: 215.52 tokens/s",
            "small, heavy layers: 215.52 tokens/s in 4 stages",
            "small, heavy layers, joint: ",  # within its 20 seconds proven or not
            "tokens/s in ",
            "Connections, not allocations, fill the model: 14,310 for each allocation of demo, 3",
        ],
        None,  # the watched placement is as good as its time allows
    ),
    "07_pipeline_schedules.ipynb": (
        [
            "GPipe: 75.0% of all ranks' time is idle",
            "GPipe: 27.3% of all ranks' time is idle",
            "GPipe and 1F1B end at 33",
            "1F1B: one chain of work, without a gap, decides the makespan",
            "1F1B never holds more than 4 of 8 microbatches, its last rank 1",
            "Interleaved1F1B ends at 28.5, 14% before 1F1B",
            "ZBH1 ends at 27, 18% before 1F1B",
            "Both end at 27; in ZBH2 every rank is busy 24 on end",
            "A second step of ZB-H2 takes 24 more, its span, not its makespan of 27",
            "GPipe does not care which rank is slow; to 1F1B the first is 6 better than the last",
            "1F1B, rank 0 slow ends at 51, 11% before 1F1B, rank 3 slow",
            "InterleavedZeroBubble and ZBV are fastest; message time 1: ZBH2 is",
            "Messages of 0.5 take 1F1B from 33 to 41",
            "Interleaved1F1B ends at 28.5, 56% before boostr's interleaved",
            "ZBH1 ends at 27, 10% before boostr's zero bubble",
            "ZBH2: 11.1% of all ranks' time is idle",
        ],
        None,  # hundreds of bars, which test_gantt.py counts
    ),
    "08_from_placement_to_timeline.ipynb": (
        [
            "20 layers on a GPU instead of 1: write-up +18%, roofline -95%",
            "Computing overtakes reading at 165 new tokens (A100, prefill) or only at 716 (A100, decode)",
            "Predicted times: median error 5.5%; 1 of 12 is off by more than 20%",
            "Llama-3-70B: 923.297 tokens/s in 23 stages",
            "Llama-3-70B: 23 microbatches in flight reach 923.297 tokens/s",
            "Llama-3-70B: 690.517 tokens/s in 24 stages",
            "Llama-3-70B, 21 in flight: 690.517 tokens/s once the pipeline is full",
            "even keeps only 46% of the optimum on 4 GPUs, Llama-3-8B",
            "Llama-3-70B, by the write-up's coefficients: 247.52 tokens/s in 4 stages",
            "Llama-3-70B: 690.5 tokens/s at most",
            "more tokens/s than the quickest",
            "Llama-3-8B, 10 GPUs: ",
            "comes nearest and loses",
            "tokens/s once the pipeline is full",
            "microbatches in flight reach",
        ],
        None,
    ),
    "09_reproducing_the_write_up.ipynb": (
        [
            "59 of 169 claims are wrong: 50% in scheduler, 30% in write-up",
            "demo: 268.124 tokens/s in 3 stages",
            "The scheduler's 1F1B idles 27.3%; its formula, and its test, say 16.7%",
        ],
        None,
    ),
}


# What stands below a chart once work beside the kernel is done.
ENDS_WITH = {"05_joint_ilp.ipynb": "ended after", "08_from_placement_to_timeline.ipynb": "in flight:"}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_notebook_runs_and_draws(name):
    titles, bars = EXPECTED[name]
    with lab(notebooks_dir()) as opened:
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
            assert figure["bars"] or figure["lines"] or figure["points"] or figure["cells"]
            assert 900 < figure["width"] < 1400  # fills the cell, and no more
        if bars is not None:  # the stages of medium's placement are SCIP's choice among equals
            assert sum(len(figure["bars"]) for figure in figures) == bars
        # The formulas are typeset, not left as dollar signs.
        if "joint" in name:
            assert opened.page.locator("mjx-container").count() > 15
        assert opened.errors == []
        assert opened.requests_elsewhere == set()


def _wait_for(page, text):
    page.wait_for_function("text => document.body.textContent.includes(text)", arg=text)


def test_the_schedule_explorer_follows_its_controls():
    with lab(notebooks_dir()) as opened:
        opened.open("07_pipeline_schedules.ipynb")
        opened.run_all()
        page, before = opened.page, opened.figures()[-1]
        page.get_by_label("schedule", exact=True).select_option("InterleavedZeroBubble")
        _wait_for(page, "InterleavedZeroBubble: 5.9% of")
        opened.handle("message").focus()
        for _ in range(6):
            page.keyboard.press("ArrowRight")
        _wait_for(page, "InterleavedZeroBubble: 22.1% of")
        _wait_for(page, "bubble_ratio0.2833")
        after = opened.figures()[-1]
        assert after["bars"] != before["bars"]
        page.get_by_label("schedule", exact=True).select_option("DualPipeV")
        _wait_for(page, "DualPipeV: 27.5% of")
        opened.press("ranks")
        _wait_for(page, "There is no DualPipeV for these numbers")
        _wait_for(page, "needs at least 10 microbatches")
        assert opened.figures()[-1]["bars"] == []
        drawn = page.locator(".js-plotly-plot").last.locator(".main-svg").first.bounding_box()
        assert drawn["width"] > 900
        assert opened.bad_outputs() == []
        assert opened.errors == []


def test_a_folded_answer_opens_by_keyboard():
    with lab(notebooks_dir()) as opened:
        opened.open("00_start_here.ipynb")
        opened.run_all()
        answer = opened.page.locator("details:has-text('Predict:')").first
        assert not answer.evaluate("d => d.open")
        answer.locator("summary").focus()
        opened.page.keyboard.press("Enter")
        assert answer.evaluate("d => d.open")


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
