"""The moving pipeline: every frame is where the timeline has the prompts, and a browser plays them."""

import json

import numpy as np
import plotly
import pytest
from playwright.sync_api import sync_playwright

import pipelab as pl
from lab_session import CHROMIUM
from pipelab.course import plot_moving, three_sites
from pipelab.figures.html_charts import figure_html

SLOW_LINK = pl.Placement.of([(20, (0,)), (20, (1,)), (20, (2,)), (10, (3,)), (8, (4,)), (2, (7,))])


@pytest.mark.parametrize("prompts", [2, 6])
def test_every_frame_has_the_prompts_where_the_timeline_has_them(prompts):
    problem = three_sites()
    figure = plot_moving(problem, SLOW_LINK, prompts)
    placed = pl.timeline_of(problem, SLOW_LINK, prompts, in_flight=prompts)
    end = placed.timeline.end.reshape(-1, prompts)
    times = [float(step.label) for step in figure.layout.sliders[0].steps]
    seconds = np.linspace(0, end[-1, -1], len(figure.frames))
    assert times == pytest.approx(seconds, abs=0.051)
    for moment, frame in zip(seconds, figure.frames, strict=True):
        x = np.array(frame.data[0].x)
        assert (np.diff(x) <= 1e-9).all()  # none overtakes another
        # a stage is as wide as 1 with the link behind it: what has left it is to its right
        for stage in range(6):
            left = end[2 * stage] <= moment
            assert (x[left] > stage + 0.5).all()
            assert (x[~left] < stage + 0.6).all()
        assert len({*zip(x, frame.data[0].y, strict=True)}) == prompts  # none hides another
        working = [at for at, y in zip(x, frame.data[0].y, strict=True) if y == 0.5]
        assert len({(int(at), at % 1 >= 0.64) for at in working}) == len(working)  # one each
    assert set(figure.frames[0].data[0].x[1:]) == {-0.4}
    assert set(figure.frames[-1].data[0].x) == {6.0}


@pytest.mark.slow
def test_the_title_has_the_time_between_two_prompts():
    problem = three_sites()
    title = plot_moving(problem, SLOW_LINK).layout.title.text
    said = "Once the pipeline is full, a prompt leaves every 2,684 ms: the link from GPU 4 to GPU 7"
    assert title.replace("<br>", " ").startswith(f"{said} takes that long")
    best = pl.solve(problem)
    title = plot_moving(problem, best.placement).layout.title.text
    assert f"every {2048000 / best.throughput:,.0f} ms: GPU " in title.replace("<br>", " ")
    assert title.count("<br><sup>") == 1


def test_it_is_small_and_a_number_of_prompts_that_cannot_be_drawn_is_refused():
    problem = three_sites()
    placement = pl.solve(problem).placement
    assert len(plot_moving(problem, placement, 12).to_json()) < 60_000
    for prompts in (1, 13):
        with pytest.raises(pl.errors.InvalidValue, match=r"plot_moving: prompts.*expected 2 to 12"):
            plot_moving(problem, placement, prompts)


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: apt install chromium")
def test_a_static_page_plays_it(tmp_path):
    figure = json.loads(plot_moving(three_sites(), SLOW_LINK).to_json())
    script = f"<script>{plotly.offline.get_plotlyjs()}</script>"
    page = tmp_path / "page.html"
    page.write_text(f"<meta charset=utf-8>{script}{figure_html(figure)}", encoding="utf-8")
    errors = []
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(page.as_uri())
        time = tab.locator(".slider-label").first
        opened = time.text_content()
        tab.locator(".updatemenu-button").first.click()
        tab.wait_for_function(
            "() => parseFloat(document.querySelector('.slider-label').textContent.split(' ')[1]) > 0.5"
            " && document.querySelectorAll('.points path').length == 6"
        )
        played = time.text_content()
        browser.close()
    assert errors == []
    assert played != opened
