"""The notebooks and explorers in a real JupyterLab, and static pages, seen through a real Chromium.

How long a key takes is measured by `python tests/benchmarks/keys.py`.
"""

import json
import os
from contextlib import contextmanager
from dataclasses import replace

import plotly
import pytest
from playwright.sync_api import expect

import pipelab as pl
from lab_session import CHROMIUM, notebook_of
from notebook_results import check_figure, drawing_cells, with_statements
from outputs_as_html import figure_html
from pictures import PICTURES
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
expect.set_options(timeout=240_000)  # on a busy machine; only what fails takes it

# One notebook with every explorer, which the tests move one after the other: a page and a kernel
# take longer than most of them. Prices stand in sentences: between two dollars JupyterLab reads
# LaTeX, unless it is told not to.
EXPLORERS = notebook_of(
    "import dataclasses, pipelab as pl\n"
    "small = pl.load_case('small')\n"
    "slower = small.cluster.scaled_bandwidth(1 / 8).with_counts({'A100': 2, 'V100': 3, 'H100': 2})\n"
    "heavy = dataclasses.replace(small.model, layers=8, layer_weight_gb=30.0)\n"
    "small = dataclasses.replace(small, cluster=slower, model=heavy)",
    "pl.explore_schedules('1F1B', other='ZBH1')",
    "pl.explore_mix('tiny')",
    "pl.explore_pipeline('Llama-3-8B', {'A100-SXM-80': 2, 'L4': 2})",
    "from pipelab.course.exercises import verdict\n"
    "display(verdict('not yet', 'Yours is 12 $, the right answer 3 $'), pl.course.guess('$1 or $2?', 1))\n"
    "found = pl.solve(pl.load_case('tiny'))\n"
    "dataclasses.replace(found, problem=dataclasses.replace(found.problem, name='$1 or $2'))",
    "guess_1 = pl.course.guess('How many?', 'It is 3 $, not 12 $.')\nguess_1('')",
    "watched = pl.watch_solve(small, 'joint', time_limit=None)\nwatched",
)
SCHEDULES, MIX, PIPELINE, WATCHED = range(4)
DRAWN = ".pipelab-chart[data-drawn=yes]"


@contextmanager
def explorers(page):
    """The outputs with explorers, on the page; nothing may have gone wrong in the end."""
    if page.notebook is not EXPLORERS:
        page.show(EXPLORERS)
        assert page.run_all(settle=False) == [*range(1, 8)]
        page.charts_drawn(least=8)
    yield [page.page.locator(".jp-OutputArea-output:has(.pipelab-chart)").nth(i) for i in range(4)]
    assert page.bad_outputs() == []
    assert page.errors == []
    assert page.requests_elsewhere == set()


def titles(shown):
    return shown.locator(".gtitle")


def menu(shown, label):
    return shown.locator(".widget-dropdown", has_text=label).locator("select")


def bars(shown):
    """The outlines of all bars of an explorer."""
    paths = ".barlayer .point path"
    return shown.locator(paths).evaluate_all("all => all.map(p => p.getAttribute('d'))")


def test_a_solve_is_watched_and_stopped_while_another_slider_answers(page):
    with explorers(page) as shown:
        watched = shown[WATCHED]
        expect(titles(watched).nth(1)).to_contain_text("best so far")
        assert bars(watched)
        page.time_of(lambda: page.press("ranks"), figure=0)
        expect(shown[SCHEDULES]).to_contain_text("5 4 3 2 1")
        expect(titles(watched).first).to_contain_text("small, joint: at work")  # it still is
        stop = page.page.get_by_role("button", name="Stop and keep the best")
        stop.press("Enter")
        expect(watched).to_contain_text("stopped on request")  # a solver that goes on never is
        expect(titles(watched).first).to_contain_text("small, joint: ◇ stopped early")
        expect(titles(watched).nth(1)).to_contain_text("the best that was found")
        assert bars(watched)


def test_every_explorer_fits_a_narrow_and_a_wide_page(page):
    """All of it is in sight without scrolling sideways, and the charts use the room."""
    with explorers(page) as shown:
        for width in (1000, 1400):
            page.page.set_viewport_size({"width": width, "height": 1000})
            page.page.wait_for_function(  # charts are drawn anew, one after the other
                """width => [...document.querySelectorAll('.jp-OutputArea-output:has(.pipelab-chart)')].every(e =>
                     e.clientWidth > 0.8 * width && e.clientWidth < width && e.scrollWidth <= e.clientWidth + 1
                     && [...e.querySelectorAll('.pipelab-chart')].every(
                          c => c.querySelector('.main-svg').clientWidth > 0.95 * e.clientWidth))""",
                arg=width, timeout=60_000,
            )  # fmt: skip
        tops = (
            shown[MIX]
            .locator(".widget-gridbox > .widget-vbox")
            .evaluate_all("all => all.map(e => e.getBoundingClientRect().top)")
        )
        assert len(set(tops[:3])) == 1  # three groups in one row
        # dollars are no formulas
        assert page.page.locator("mjx-container").count() == 0
        outputs = page.page.locator(".jp-OutputArea-output")
        for said in ("Yours is 12 $, the right answer 3 $", "$1 or $2?", "$1 or $2, aggregated"):
            expect(outputs.filter(has_text=said)).to_have_count(1)


def test_every_control_is_reached_by_keyboard_and_charts_words_and_code_follow(page):
    with explorers(page) as shown:
        mix = shown[MIX]
        focused = """() => { const e = document.activeElement;
          if (['BUTTON', 'SUMMARY'].includes(e.tagName)) return e.textContent;
          if (e.type === 'checkbox') return e.closest('label').textContent;
          return e.closest('.jupyter-widgets, .widget-slider')?.querySelector('label')?.textContent; }"""
        page.handle("A100").focus()
        seen = [page.page.evaluate(focused)]
        for _ in range(56):
            page.page.keyboard.press("Tab")
            seen.append(page.page.evaluate(focused))
        expected = [
            "A100", "V100", "model or case", "cost model", "phase", "batch (sequences)", "context (tokens)",
            "in flight (0: chosen)", "network, any to any", "GPUs per stage, up to", "batch is split",
            "more controls", "layers of each stage", "back to the optimum",
        ]  # fmt: skip
        # A slider is two stops: its handle, and the number beside it.
        assert [label for label in dict.fromkeys(seen) if label in expected] == expected
        assert any((label or "").startswith("Copy as code") for label in seen)
        before = bars(mix)
        page.time_of(lambda: page.press("A100"), figure=2)
        expect(titles(mix).nth(1)).to_contain_text("tiny, 5 GPUs: ")
        best = titles(mix).nth(1).text_content()
        menu(mix, "phase").focus()
        page.page.keyboard.press("ArrowDown")
        expect(titles(mix).nth(1)).to_contain_text("These values contradict each other")
        expect(mix).to_contain_text("expected 'prefill'")
        page.page.keyboard.press("ArrowUp")
        expect(titles(mix).nth(1)).to_have_text(best)
        field = mix.locator(".widget-text", has_text="layers of each stage").locator("input")
        expect(field).to_have_value("4")  # the optimum's, which comes after its chart
        field.fill("1,1,1,1")
        field.press("Enter")
        expect(titles(mix).nth(1)).to_contain_text("Your plan: ")
        mix.get_by_role("button", name="back to the optimum").press("Enter")
        expect(titles(mix).nth(1)).to_have_text(best)
        assert bars(mix) != before
        page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        mix.locator("summary", has_text="Copy as code").press("Enter")
        mix.get_by_role("button", name="Copy", exact=True).press("Enter")
        mix.get_by_role("button", name="Copied").wait_for()
        code, space = page.page.evaluate("() => navigator.clipboard.readText()"), {}
        exec(code, space)
        assert f"tiny, 5 GPUs: {space['result'].throughput:.1f} tokens/s" in best


def test_the_pipeline_turns_to_placement_and_training_and_back(page):
    with explorers(page) as shown:
        pipeline = shown[PIPELINE]
        before, charts = bars(pipeline), pipeline.locator(DRAWN)
        expect(pipeline).to_contain_text("in flight:")
        page.time_of(lambda: page.press("L4", "Home"), figure=4)
        assert bars(pipeline) != before
        ends, begins = charts.first.bounding_box(), page.handle("L4").bounding_box()
        assert ends["y"] + ends["height"] - begins["y"] < 1000  # both on one screen
        for view, count, said in (
            ("placement", 3, "Best deployment: "),
            ("training", 2, "The fullest GPU is in stage"),
            ("serving", 2, "in flight:"),
        ):
            pipeline.get_by_role("button", name=view).press("Enter")
            expect(charts).to_have_count(count)
            expect(titles(pipeline).filter(has_text=said).first).to_be_visible()
            batch = pipeline.get_by_text("batch (sequences)")
            expect(batch).to_be_visible(visible=view != "training")


def test_after_a_reload_of_the_page_everything_is_as_it_was_and_answers(page):
    """As long as the notebook was saved; what else may be missing is told below every explorer."""
    with explorers(page) as shown:
        answer = page.page.get_by_text("It is 3 $, not 12 $.", exact=True)
        assert not answer.is_visible()
        page.page.locator(".jp-CodeCell .cm-content").nth(5).click()
        for key in ("Control+End", "ArrowLeft", "ArrowLeft"):
            page.page.keyboard.press(key)
        page.page.keyboard.type("two of them")
        page.page.keyboard.press("Control+Enter")
        page.page.get_by_text("Your prediction: two of them").wait_for()
        expect(shown[MIX]).not_to_contain_text("being solved")
        expect(shown[PIPELINE]).not_to_contain_text("being solved")
        stop = page.page.get_by_role("button", name="Stop and keep the best")
        if stop.is_enabled():  # no other test has stopped it
            stop.press("Enter")
        expect(titles(shown[WATCHED]).first).not_to_contain_text("at work")
        page.settle()

        def seen():
            figures = page.figures()
            words = page.page.locator(".widget-html-content").all_inner_texts()
            return [(f["title"], f["bars"]) for f in figures], words

        before = seen()
        page.save()
        page.page.reload(wait_until="domcontentloaded")
        page.charts_drawn(least=len(before[0]))
        page.settle()
        assert seen() == before
        page.time_of(lambda: page.press("V100"), figure=2)
        note = page.page.locator("text=Run ▸ Run All Cells")
        assert note.count() == 4
        assert not note.first.is_visible()
        typed = page.page.locator(".jp-CodeCell .cm-content").nth(5).inner_text()
        assert typed.strip().endswith("guess_1('two of them')")
    # without a kernel, the notebook says how an explorer comes back
    page.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.page.reload(wait_until="domcontentloaded")
    expect(note.first).to_be_visible()
    expect(page.page.get_by_text("Your prediction: two of them")).to_be_visible()
    assert page.page.locator(".pipelab-chart").count() == 0
    page.notebook = None
    page.errors.clear()


# What stands below a chart once work beside the kernel is done.
ENDS_WITH = {
    "10_in_flight.ipynb": "in flight:",
    # of the mix explorer: until then the chart of the deployment has no bars
    "12_deployments_and_rent.ipynb": "Best deployment: 4",
}


BOOKS = sorted(path.name for path in notebooks_dir().glob("[0-9][0-9]_*.ipynb"))
BY_DAY = "07_pipeline_schedules.ipynb"  # Gantt charts, formulas, an explorer


@pytest.mark.parametrize(
    "name",
    [n if n == BY_DAY else pytest.param(n, marks=pytest.mark.nightly) for n in BOOKS],
)
def test_a_notebook_runs_and_draws(page, name):
    notebook = with_statements(notebooks_dir() / name, name)
    page.show(notebook)
    counts = page.run_all()
    assert counts == list(range(1, len(counts) + 1))
    assert page.bad_outputs() == []
    if name in ENDS_WITH:
        expect(page.page.locator("body")).to_contain_text(ENDS_WITH[name])
        page.settle()
    figures = page.figures()
    assert len(figures) >= len(drawing_cells(notebook))
    for figure in figures:
        check_figure(figure["title"], figure["axes"], figure["kinds"], figure["annotations"])
        assert figure["bars"] or figure["lines"] or figure["points"] or figure["cells"]
        assert 900 < figure["width"] < 1400  # fills the cell, and no more
    # The formulas are typeset, not left as dollar signs.
    shown = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert page.page.locator("mjx-container").count() >= shown.count("$$") // 2
    assert page.too_wide(1000) == []
    assert page.errors == []
    assert page.requests_elsewhere == set()


def test_static_pages_filter_a_ledger_without_a_script_and_play_a_moving_figure(page, tmp_path):
    ledger = pl.course.reproduce(["pmetal", "boostr"])
    rows = ledger.data
    some = (rows["verdict"] != "does not hold") | (rows["document"] != "pmetal")
    ledger = replace(ledger, data=rows[some])
    file = tmp_path / "page.html"
    file.write_text(ledger.html(), encoding="utf-8")
    tab = page.page.context.browser.new_context(java_script_enabled=False).new_page()
    tab.goto(file.as_uri())
    fails = "does not hold"
    for verdict, document in (("all", "all"), (fails, "boostr"), (fails, "pmetal")):
        tab.locator(f"label:text-matches('^{verdict} ')").first.click()
        tab.locator(f"label:text-matches('^{document} ')").last.click()
        chosen = [
            row
            for row in ledger.data.itertuples()
            if verdict in ("all", row.verdict) and document in ("all", row.document)
        ]
        assert tab.locator("tr[class^=v]:visible").count() == len(chosen)
    tab.context.close()

    figure = figure_html(json.loads(PICTURES["moving"]().to_json()))
    script = f"<script>{plotly.offline.get_plotlyjs()}</script>"
    file.write_text(f"<meta charset=utf-8>{script}{figure}", encoding="utf-8")
    tab, errors = page.page.context.browser.new_page(), []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(file.as_uri())
    moment = tab.locator(".slider-label").first
    opened = moment.text_content()
    tab.locator(".updatemenu-button").first.click()
    expect(moment).not_to_have_text(opened)
    expect(tab.locator(".points path")).to_have_count(6)
    tab.close()
    assert errors == []
