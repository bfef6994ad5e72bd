"""Every explorer in a real JupyterLab: keys change values, drawings and words; Stop stops.

How long a key takes is measured by `python tests/benchmarks/keys.py`.
"""

import os

import pytest

from lab_session import CHROMIUM, explorer, notebook_of

REQUIRED = os.environ.get("PIPELAB_BROWSER_REQUIRED") == "1"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not CHROMIUM and not REQUIRED, reason="no Chromium on this machine: apt install chromium"
    ),
]


def wait_for(page, text):
    page.page.wait_for_function(
        "text => document.body.innerText.includes(text)", arg=text, timeout=60_000
    )


def redrawn(page, before, *places):
    """The figures, once all of these show something else than before: each is drawn in its own time."""
    for _ in range(400):
        after = page.figures()
        if all(
            after[i]["bars"] + after[i]["lines"] != before[i]["bars"] + before[i]["lines"]
            for i in places
        ):
            return after
        page.page.wait_for_timeout(50)
    raise AssertionError(f"figures {places} are not all redrawn after 20 s")


def choose(page, label, option):
    """Choose from a menu."""
    page.page.locator(".widget-dropdown", has_text=label).locator("select").select_option(option)


def test_the_mix_follows_its_controls(page):
    with explorer(page, "import pipelab as pl", "pl.explore_mix('Llama-3-8B')"):
        before = page.figures()
        assert "Llama-3-8B, 10 GPUs: " in before[1]["title"]
        assert 900 < before[1]["width"] < 1400
        wait_for(page, "would help most")
        page.time_of(lambda: page.press("A100-SXM-40"), figure=1)
        after = redrawn(page, before, 1, 2)
        assert "Llama-3-8B, 11 GPUs: " in after[1]["title"]
        page.press("context (tokens)", "End")
        page.press("batch (sequences)", "End")
        wait_for(page, "no placement exists")
        page.press("batch (sequences)", "Home")
        page.press("context (tokens)", "Home")
        wait_for(page, "limited by")
        choose(page, "model or case", "tiny")
        wait_for(page, "tiny, 4 GPUs: ")
        choose(page, "phase", "decode")
        wait_for(page, "expected 'prefill'")  # the linear cost model knows prefill alone
        wait_for(page, "These values contradict each other")
        page.page.wait_for_timeout(500)
        assert page.figures()[1]["bars"] == []
        choose(page, "phase", "prefill")
        wait_for(page, "tiny, 4 GPUs: 217.5 tokens/s")
        page.press("GPUs per stage, up to")
        wait_for(page, "tiny, 4 GPUs: 301.8 tokens/s")
        lossy = page.figures()[1]["title"]
        choose(page, "cost model", "linear, shared without loss")
        page.page.wait_for_function(
            "t => document.querySelectorAll('.gtitle')[1].textContent !== t", arg=lossy
        )
        assert "tiny, 4 GPUs: 355 tokens/s" in page.figures()[1]["title"]


def test_a_plan_by_hand_is_evaluated_and_the_optimum_comes_back(page):
    start = "pl.explore_mix('Llama-3-8B', {'A100-SXM-40': 2, 'L4': 2, 'T4': 2})"
    with explorer(page, "import pipelab as pl", start):
        wait_for(page, "proven optimal")  # the first answer may be another
        page.page.wait_for_timeout(500)
        best = page.figures()[1]
        page.time_of(lambda: page.press("lies after layer"), figure=1)
        own = page.figures()[1]
        assert "Your plan: " in own["title"]
        assert own["bars"] != best["bars"]
        field = page.page.locator(".widget-text", has_text="layers of each stage").locator("input")
        stages = len(field.input_value().split(","))
        field.fill(",".join(["32"] + ["0"] * (stages - 1)))  # all on the T4s
        field.press("Enter")
        wait_for(page, "Your plan is not valid")
        wait_for(page, "GB too much")
        page.page.get_by_role("button", name="back to the optimum").press("Enter")
        page.page.wait_for_function(
            "t => document.querySelectorAll('.gtitle')[1].textContent === t", arg=best["title"]
        )
        assert page.figures()[1]["bars"] == best["bars"]
        page.page.locator("summary", has_text="Copy as code").press("Enter")
        assert "pl.solve(problem" in page.page.locator(".pipelab-code").inner_text()


def test_a_solve_is_watched_stopped_and_other_sliders_answer_meanwhile(page):
    problem = (
        "import dataclasses, pipelab as pl\n"
        "small = pl.load_case('small')\n"
        "slower = small.cluster.scaled_bandwidth(1 / 8).with_counts({'A100': 2, 'V100': 3, 'H100': 2})\n"
        "heavy = dataclasses.replace(small.model, layers=8, layer_weight_gb=30.0)\n"
        "small = dataclasses.replace(small, cluster=slower, model=heavy)"
    )
    with explorer(page, problem, "watched = pl.watch_solve(small, 'joint', time_limit=None)\nwatched",
                "pl.explore_schedules()"):  # fmt: skip
        wait_for(page, "best so far")
        first = page.figures()
        assert len(first[0]["lines"]) >= 2
        assert first[1]["bars"]
        other = page.time_of(lambda: page.press("ranks"), figure=2)
        assert "5 ranks" in page.figures()[2]["title"]
        wait_for(page, "small, joint: at work")  # it still is
        stop = page.page.get_by_role("button", name="Stop and keep the best")
        stopped = page.time_until(lambda: stop.press("Enter"), "stopped on request")
        wait_for(page, "the best that was found")
        drawn = "() => document.querySelectorAll('.gtitle')[0].textContent.includes('small, joint: ◇ stopped early')"
        page.page.wait_for_function(drawn)
        assert page.figures()[1]["bars"]
        load = os.getloadavg()[0]
        print(f"\nwhile SCIP runs another slider redraws in {other:.0f} ms; Stop has stopped after {stopped:.0f} ms "
              f"(load {load:.1f} on {os.cpu_count()} cores)")  # fmt: skip
        # one second where nothing else uses the cores; a solver that goes on never stops
        assert stopped < 5000


def test_the_mix_flows_into_the_pipeline(page):
    with explorer(page, "import pipelab as pl", "pl.explore_pipeline('Llama-3-8B')"):
        wait_for(page, "in flight:")
        before = page.figures()
        assert len(before) == 2
        page.press("T4", "Home")
        redrawn(page, before, 0)
        page.page.wait_for_function(
            "t => document.querySelectorAll('.gtitle')[0].textContent !== t",
            arg=before[0]["title"],
        )
        page.time_of(lambda: page.press("in flight here (0: as placed)"))
        wait_for(page, "Llama-3-8B, 1 in flight: ")
        ends = page.page.locator(".pipelab-chart").first.bounding_box()
        begins = page.handle("T4").bounding_box()
        assert ends["y"] + ends["height"] - begins["y"] < 1000  # both on one screen
        page.page.get_by_role("button", name="placement").press("Enter")
        wait_for(page, "Best deployment: ")
        page.charts_drawn(least=3)
        assert len(page.figures()) == 3


def test_the_pipeline_turns_to_training_and_back(page):
    counts = {"A100-SXM-80": 2, "L4": 2}
    with explorer(page, "import pipelab as pl", f"pl.explore_pipeline('Llama-3-8B', {counts})"):
        page.page.get_by_role("button", name="train").press("Enter")
        wait_for(page, "proven least")
        wait_for(page, "The fullest GPU is in stage")
        assert not page.page.get_by_text("batch (sequences)").is_visible()
        first = page.figures()
        assert len(first) == 2
        page.time_of(lambda: page.press("microbatches"), figure=0)
        choose(page, "schedule", "ZBH1")
        wait_for(page, "Llama-3-8B, ZBH1: a step takes")
        wait_for(page, "proven least")
        redrawn(page, first, 0, 1)
        page.page.set_viewport_size({"width": 1000, "height": 1000})
        page.page.wait_for_function(
            """() => [...document.querySelectorAll('.jp-OutputArea-output:has(.pipelab-chart)')].every(e =>
                 e.scrollWidth <= e.clientWidth + 1 && [...e.querySelectorAll('.pipelab-chart')].every(
                   c => c.querySelector('.main-svg').clientWidth > 0.95 * e.clientWidth))"""
        )
        page.page.get_by_role("button", name="serving").press("Enter")
        wait_for(page, "in flight:")
        assert len(page.figures()) == 2
        assert page.page.get_by_text("batch (sequences)").is_visible()


def test_two_schedules_beside_each_other(page):
    with explorer(page, "import pipelab as pl", "pl.explore_schedules('1F1B', other='ZBH1')"):
        before = page.figures()[0]
        assert before["title"] == "ZBH1 ends at 27, 18% before 1F1B"
        assert page.page.inner_text("body").count("✓ agree") > 4
        page.time_of(lambda: page.press("microbatches"))
        after = page.figures()[0]
        assert after["bars"] != before["bars"]
        page.time_of(lambda: page.press("message"))
        wait_for(page, "not claimed here")
        choose(page, "compare with", "none")
        wait_for(page, "of all ranks' time is idle")  # the title of one chart alone
        page.page.wait_for_function("() => document.body.innerText.split('simulated').length === 2")
        choose(page, "schedule", "DualPipeV")
        wait_for(page, "DualPipeV: ")
        page.press("ranks", "PageUp")
        wait_for(page, "There is no DualPipeV for these numbers")
        wait_for(page, "needs at least")


def test_one_schedule_follows_its_controls(page):
    with explorer(page, "import pipelab as pl", "pl.explore_schedules('ZBH2')"):
        before = page.figures()[0]
        wait_for(page, "7 6.882 6.765 6.647, if W needs 0.9412 of the activations")
        choose(page, "held until W", "1: all")
        wait_for(page, "7 7 7 7, if W needs 1 of the activations")
        choose(page, "schedule", "InterleavedZeroBubble")
        wait_for(page, "InterleavedZeroBubble: 5.9% of")
        page.handle("message").focus()
        for _ in range(6):
            page.page.keyboard.press("ArrowRight")
        wait_for(page, "InterleavedZeroBubble: 22.1% of")
        wait_for(page, "0.2833")  # bubble_ratio
        after = page.figures()[0]
        assert after["bars"] != before["bars"]
        choose(page, "schedule", "DualPipeV")
        wait_for(page, "DualPipeV: 27.5% of")
        page.press("ranks")
        wait_for(page, "There is no DualPipeV for these numbers")
        wait_for(page, "needs at least 10 microbatches")
        last = page.figures()[0]
        assert last["bars"] == []
        assert last["width"] > 900


EXPLORERS = {
    "mix": "pl.explore_mix('Llama-3-8B')",
    "pipeline": "pl.explore_pipeline('Llama-3-8B')",
    "schedules": "pl.explore_schedules('1F1B', other='ZBH1')",
    "watch": "pl.watch_solve(pl.load_case('tiny', max_gpus_per_stage=2))",
}


def test_every_explorer_fits_a_narrow_and_a_wide_page(page):
    """All of it is in sight without scrolling sideways, and the charts use the room."""
    with explorer(page, "import pipelab as pl", *EXPLORERS.values()):
        for width in (1600, 1000):
            page.page.set_viewport_size({"width": width, "height": 1000})
            page.page.wait_for_function(  # charts are drawn anew, one after the other
                """width => [...document.querySelectorAll('.jp-OutputArea-output:has(.pipelab-chart)')].every(e =>
                     e.clientWidth > 0.8 * width && e.clientWidth < width && e.scrollWidth <= e.clientWidth + 1
                     && [...e.querySelectorAll('.pipelab-chart')].every(
                          c => c.querySelector('.main-svg').clientWidth > 0.95 * e.clientWidth))""",
                arg=width, timeout=60_000,
            )  # fmt: skip
            room = page.page.eval_on_selector_all(
                ".jp-OutputArea-output:has(.pipelab-chart)",
                "es => es.map(e => [e.clientWidth, e.scrollWidth, e.querySelector('.main-svg').clientWidth])",
            )
            assert len(room) == len(EXPLORERS)
            for client, scroll, chart in room:
                assert scroll <= client + 1
                assert chart > 0.95 * client > 0.76 * width


def test_after_a_reload_of_the_page_everything_is_as_it_was_and_answers(page):
    """As long as the notebook was saved; what else may be missing is told below every explorer."""
    with explorer(
        page, "import pipelab as pl", "pl.explore_mix('Llama-3-8B')", "pl.explore_schedules()"
    ):
        page.time_of(lambda: page.press("T4"), figure=1)
        page.time_of(lambda: page.press("ranks"), figure=3)
        wait_for(page, "would help most")
        wait_for(page, "this plan reaches")
        page.page.wait_for_function("() => !document.body.innerText.includes('being solved')")
        page.page.wait_for_timeout(500)
        before, said = page.figures(), page.page.locator(".widget-html-content").all_inner_texts()
        page.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        page.page.wait_for_timeout(1000)
        page.page.reload(wait_until="domcontentloaded")
        page.charts_drawn(least=4)
        page.page.wait_for_timeout(1000)
        after = page.figures()
        assert [f["title"] for f in after] == [f["title"] for f in before]
        assert [f["bars"] for f in after] == [f["bars"] for f in before]
        assert page.page.locator(".widget-html-content").all_inner_texts() == said
        page.time_of(lambda: page.press("T4"), figure=1)
        assert "Llama-3-8B, 12 GPUs: " in page.figures()[1]["title"]
        note = page.page.locator("text=Run ▸ Run All Cells")
        assert note.count() == 2
        assert not note.first.is_visible()


def test_a_saved_notebook_says_how_an_explorer_comes_back(page):
    with explorer(page, "import pipelab as pl", "pl.explore_schedules()"):
        page.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        page.page.wait_for_timeout(1000)
        page.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        page.page.reload(wait_until="domcontentloaded")
        page.page.locator("text=Run ▸ Run All Cells").wait_for(state="visible")
        assert page.page.locator(".pipelab-chart").count() == 0
        page.errors.clear()


def test_every_control_of_an_explorer_is_reached_and_moved_by_keyboard(page):
    cells = (
        "import pipelab as pl",
        "pl.explore_mix('tiny')",
        "guess_1 = pl.course.guess('How many stages?', 'One.')",
        "guess_1('')",
    )
    with explorer(page, *cells):
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
            "more controls", "layers of each stage", "boundary after stage", "lies after layer", "back to the optimum",
        ]  # fmt: skip
        # A slider is two stops: its handle, and the number beside it.
        assert [label for label in dict.fromkeys(seen) if label in expected] == expected
        assert any((label or "").startswith("Copy as code") for label in seen)
        page.page.locator(".widget-dropdown", has_text="model or case").locator("select").focus()
        page.page.keyboard.press("ArrowDown")
        wait_for(page, "medium_small, 8 GPUs: ")
        page.press("GPUs per stage, up to")
        page.page.wait_for_function(
            "() => document.querySelectorAll('.pipelab-chart')[1].ariaLabel.includes('8 GPUs')"
        )
        answer = page.page.locator("details", has_text="without a prediction")
        assert not answer.evaluate("d => d.open")
        answer.locator("summary").press("Enter")
        assert answer.evaluate("d => d.open")


_GUESS = "guess_1 = pl.course.guess('How many stages?', 'It is one stage.')\nguess_1"
_FRESH_KERNEL = """async () => {
  const { sessionContext } = window.jupyterapp.shell.currentWidget;
  await sessionContext.ready; await sessionContext.changeKernel({name: 'python3'}); }"""


def test_a_prediction_is_kept_with_the_notebook(page):
    """Typed, saved, loaded again: it is there without running anything, and after running all of it."""
    page.show(notebook_of("import pipelab as pl", _GUESS, "guess_1('')"))
    page.run_all()
    answer = page.page.get_by_text("It is one stage.", exact=True)
    assert not answer.is_visible()
    page.page.locator(".jp-CodeCell .cm-content").last.click()
    for key in ("End", "ArrowLeft", "ArrowLeft"):
        page.page.keyboard.press(key)
    page.page.keyboard.type("two of them")
    page.page.keyboard.press("Control+Enter")
    wait_for(page, "It is one stage.")
    page.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.page.wait_for_timeout(1000)
    page.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.page.reload(wait_until="domcontentloaded")
    page.page.wait_for_selector(".jp-Notebook .jp-Cell")
    typed = page.page.locator(".jp-CodeCell .cm-content").last
    typed.get_by_text("guess_1(").wait_for()  # cells are drawn empty first
    assert typed.inner_text().strip() == "guess_1('two of them')"
    said = page.page.locator(".jp-OutputArea-output").last
    for _ in range(2):
        said.get_by_text("Your prediction: two of them").wait_for()
        assert "It is one stage." in said.inner_text()
        page.page.evaluate(_FRESH_KERNEL)
        assert page.run_all() == [1, 2, 3]
    page.errors.clear()


@pytest.mark.parametrize("name", ["mix", "schedules"])
def test_the_state_is_copied_out_as_code_that_makes_it_again(page, name):
    with explorer(page, "import pipelab as pl", EXPLORERS[name]):
        page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.time_of(
            lambda: page.press("T4" if name == "mix" else "ranks"), figure=int(name == "mix")
        )
        page.page.locator("summary", has_text="Copy as code").press("Enter")
        page.page.get_by_role("button", name="Copy", exact=True).press("Enter")
        page.page.get_by_role("button", name="Copied").wait_for()
        code, space = page.page.evaluate("() => navigator.clipboard.readText()"), {}
        exec(code, space)
        title = page.figures()[1 if name == "mix" else 0]["title"]
        if name == "mix":
            assert f"Llama-3-8B, 11 GPUs: {space['result'].throughput:,.0f} tokens/s" in title
        else:
            assert f"ZBH1 ends at {space['timelines'][1].makespan:g}" in title


def test_prices_in_a_sentence_are_not_taken_for_a_formula(page):
    """Between two dollars JupyterLab reads LaTeX, unless it is told not to."""
    two = "Yours is 12 $, the right answer 3 $ per hour"
    cells = (
        "from dataclasses import replace\nimport pipelab as pl\nfrom pipelab.course.exercises import verdict",
        f"verdict('not yet', '{two}')", f"pl.course.guess('{two}?', '{two}.')",
        f"pl.course.guess('{two}?', '{two}.')('{two}')",
        "found = pl.solve(pl.load_case('tiny'))\nreplace(found, problem=replace(found.problem, name='$1 or $2'))",
    )  # fmt: skip
    page.show(notebook_of(*cells))
    assert page.run_all() == [1, 2, 3, 4, 5]
    assert page.page.locator("mjx-container").count() == 0
    said = page.page.locator(".jp-OutputArea-output").all_inner_texts()
    for expected, text in zip((two, two, two, "$1 or $2"), said, strict=True):
        assert expected in text


def test_the_simple_preset_shows_three_controls_and_then_all(page):
    counted = """() => [...document.querySelectorAll('.widget-slider, .widget-dropdown, .widget-text')]
        .filter(e => e.offsetParent).length"""
    with explorer(page, "import pipelab as pl", "pl.explore_mix('tiny', simple=True)"):
        assert page.page.evaluate(counted) == 3
        page.time_of(lambda: page.press("A100"), figure=1)
        wait_for(page, "tiny, 5 GPUs: ")
        page.page.get_by_label("more controls").check()
        wait_for(page, "Model and workload")
        assert page.page.evaluate(counted) == 19
        tops = page.page.eval_on_selector_all(
            ".widget-gridbox > .widget-vbox", "es => es.map(e => e.getBoundingClientRect().top)"
        )
        assert len(set(tops[:3])) == 1  # three groups in one row
        page.page.get_by_label("more controls").uncheck()
        page.page.wait_for_function(f"() => ({counted})() === 3")
